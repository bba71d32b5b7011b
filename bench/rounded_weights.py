"""What weights in bfloat16 would cost in quality: rounded to the nearest, and by chance.

    python bench/rounded_weights.py --text docs --d-model 128 --layers 2 --steps 300

Three plain loops train the same model on the same microbatches (`side_by_side.py`): with float32
weights, with weights that are rounded to the nearest bfloat16 after each step, and with weights
that are rounded up or down by a hash of step and place, as often as each is near. Moments and
gradient sums are float32 in all three. It prints the held-out loss of each. The memory of the
weights is float32 here: no run has this yet, and this says whether it would be worth having.

Source:  the rounding as in Gupta et al., "Deep Learning with Limited Numerical Precision", 2015;
         the hash is the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import dataclasses
import json
from collections.abc import Callable

import side_by_side
import torch
from side_by_side import base_run, parser_of, train_side_by_side
from torch import Tensor

from p2pswarm.compute.reference import ReferenceTrainer
from p2pswarm.config import RunConfig

FIRST, SECOND = 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64)
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
LOW_BITS = 0xFFFF  # of a float32 that a bfloat16 does not have
NOT_FINITE = 0x7F800000


def nearest(x_N: Tensor, _step: int) -> None:
    """Round to the nearest bfloat16."""
    x_N.copy_(x_N.to(torch.bfloat16))


def stochastic(x_N: Tensor, step: int) -> None:
    """Round to one of the two bfloat16 beside each value; in the mean it stays what it is."""
    bits_N = x_N.view(torch.int32)
    word_N = torch.arange(len(x_N)) * STEP + (step << 40)
    for shift, factor in ((30, FIRST), (27, SECOND)):
        word_N = (word_N ^ (word_N >> shift & (1 << (64 - shift)) - 1)) * factor
    chance_N = (word_N >> 40 & LOW_BITS).to(torch.int32)
    rounded_N = bits_N + chance_N & ~LOW_BITS
    bits_N.copy_(torch.where(bits_N & NOT_FINITE == NOT_FINITE, bits_N, rounded_N))


class RoundedTrainer(ReferenceTrainer):
    """The plain loop, with weights that are rounded after each step."""

    def __init__(self, run: RunConfig, device: torch.device | None = None) -> None:
        """`run.name` says how."""
        super().__init__(run, device)
        ways: dict[str, Callable[[Tensor, int], None]] = {
            "nearest": nearest,
            "stochastic": stochastic,
        }
        self._round = ways.get(run.name)

    def apply(self, scale: float, learning_rate: float) -> None:
        """Update, and round."""
        super().apply(scale, learning_rate)
        if self._round is not None:
            with torch.no_grad():
                self._round(self.flat.params_N, self.version)


def check_rounding() -> None:
    """Stop unless the mean of roundings is the value, and they are its neighbours."""
    value_N = torch.linspace(-3.0, 3.0, 1001)
    total_N, rounds = torch.zeros(1001, dtype=torch.float64), 4000
    for step in range(rounds):
        found_N = value_N.clone()
        stochastic(found_N, step)
        assert torch.equal(found_N, found_N.to(torch.bfloat16).to(torch.float32))
        total_N += found_N
    gap_N = value_N.abs() * 2.0**-7 + 1e-9  # at most between two neighbours
    assert ((total_N / rounds - value_N).abs() < 5 * gap_N / rounds**0.5).all()
    kept = torch.tensor([0.0, 1.0, -0.5, torch.inf, -torch.inf, torch.nan])
    again = kept.clone()
    stochastic(again, 1)
    assert torch.equal(kept.view(torch.int32), again.view(torch.int32))


def main() -> None:
    """Train all three, and compare."""
    options = parser_of(__doc__.partition("\n")[0]).parse_args()
    check_rounding()
    run = base_run(options)
    ways = {
        name: dataclasses.replace(run, name=name) for name in ("float32", "nearest", "stochastic")
    }
    side_by_side.ReferenceTrainer = RoundedTrainer  # type: ignore[misc]
    found = train_side_by_side(ways, options)
    full = found["float32"].held_out
    for name, each in found.items():
        print(f"held-out loss: {name} {each.held_out:.5f} ({each.held_out / full - 1:+.3%})")
    if options.json:
        options.json.write_text(json.dumps({name: e.held_out for name, e in found.items()}))


if __name__ == "__main__":
    main()
