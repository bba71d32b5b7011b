"""The options of benches that measure a GPT on one device in this process, and its run.

Used by `bench/recompute.py` and `bench/compiled.py`; it is no bench.
"""

import argparse
from pathlib import Path

from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig


def options_of(text: str | None, *, layers: int) -> argparse.Namespace:
    """What the command line says; `text`: the bench's docstring, `layers`: how many unless said."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    numbers = {"d-model": 256, "layers": layers, "rows": 4, "tokens": 256, "rounds": 5}
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--precision", default="full", choices=["full", "bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def run_of(options: argparse.Namespace, *, cut: tuple[int, ...] = ()) -> RunConfig:
    """The run of those options: of one stage, or of the stages of `cut`."""
    model = ModelConfig(
        d_model=options.d_model, layers=options.layers, sequence_length=options.tokens
    )
    return RunConfig(
        stages=len(cut) or 1,
        cut=cut,
        model=model,
        precision=options.precision,
        batch=BatchConfig(microbatches=1, rows=options.rows),
    )
