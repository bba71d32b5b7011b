"""Prints how far stages are from the library's whole model, for families of `transformers`.

    PYTHONPATH=.:tests python bench/model_families.py [--tied | --more] [FAMILY ...]

Every block of a tiny random copy is a stage of its own. Forward, backward, graphs that are made
again, all twice; float64 on a CPU. With `--tied` embedding and head are one tensor, at both ends.
With `--more` it is the families of `tests/models/more_families.py`.
"""

import sys
import time

import torch
from models.families import MIXTURES, PLAIN, family_run, run_of_kind, tied_run
from models.more_families import EACH_KIND, OTHERS

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.model_check import check_stages
from p2pswarm.settings.config import RunConfig

MORE = EACH_KIND | OTHERS


def more_run(name: str) -> RunConfig:
    """A run of a tiny copy of a further family."""
    return run_of_kind(name, **MORE[name])


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
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
