"""Prints how far stages are from the library's whole model, for families of `transformers`.

    PYTHONPATH=.:tests python bench/model_families.py [--tied | --more | --files] [FAMILY ...]

Every block of a tiny random copy is a stage of its own. Forward, backward, graphs that are made
again, all twice; float64 on a CPU. With `--tied` embedding and head are one tensor, at both ends.
With `--more` it is the families of `tests/models/more_families.py`. With `--files` it is all of
them: whether a run starts from the files that the library writes, with the numbers that
`from_pretrained` reads, and whether what it exports is these files again.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch
from models.families import MIXTURES, PLAIN, family_run, run_of_kind, tied_run
from models.family_trials import FAMILIES, YES, pretrained_and_export
from models.more_families import EACH_KIND, OTHERS

from p2pswarm.base.errors import Unusable
from p2pswarm.models.check.model_check import check_stages
from p2pswarm.settings.config import RunConfig

MORE = EACH_KIND | OTHERS


def more_run(name: str) -> RunConfig:
    """A run of a tiny copy of a further family."""
    return run_of_kind(name, **MORE[name])


def try_files(names: list[str]) -> None:
    """Print what of the library's files works, for each family and for all together."""
    print("| family | pretrained | export | s |")
    print("|---" * 4 + "|")
    counts = [0, 0]
    for name in names:
        begun_s = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = pretrained_and_export(name, Path(folder))
        counts = [count + (each == YES) for count, each in zip(counts, found, strict=True)]
        print(f"| {name} | {' | '.join(found)} | {time.monotonic() - begun_s:.1f} |", flush=True)
    print(f"\npretrained: {counts[0]} of {len(names)}; export: {counts[1]} of {len(names)}")


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    if "--files" in names:
        try_files([name for name in names if not name.startswith("--")] or [*FAMILIES])
        return
    made, known = (tied_run if "--tied" in names else family_run), [*PLAIN, *MIXTURES]
    if "--more" in names:
        made, known = more_run, [*MORE]
    names = [name for name in names if not name.startswith("--")]
    print("| family | stages | tensors | largest difference of a gradient | s |")
    print("|---" * 5 + "|")
    for name in names or known:
        begun_s = time.monotonic()
        try:
            found = check_stages(made(name))
        except Unusable as error:
            print(f"| {name} | refused: {error} |")
            continue
        took_s = time.monotonic() - begun_s
        what = found.problem or f"{found.apart:g}"
        print(f"| {name} | {found.stages} | {found.parameters} | {what} | {took_s:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
