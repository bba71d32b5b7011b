"""What weights in bfloat16 cost in quality and time, and what they save in memory.

    python bench/rounded_weights.py --text docs --suffixes .md --d-model 128 --layers 4

Four plain loops train the same model on the same microbatches (`side_by_side.py`): in float32; with
`run.precision = "bf16"`; with `run.weight_storage = "bf16"` besides, which rounds by chance; and,
to compare, with weights that are rounded to the nearest bfloat16 after each step, which no run
does. It prints the held-out loss of each, in its own precision.

Then, for each way that a run can have: what a stage's memory is made of, in bytes a parameter, what
a newcomer downloads, and the processor time of one commit by this optimizer.
"""
# ruff: noqa: N806  shapes are written at the end of names

import dataclasses
import json
import statistics
import time
from collections.abc import Mapping

import side_by_side
import torch
from side_by_side import base_run, parser_of, train_side_by_side

from p2pswarm.compute.base import Update
from p2pswarm.compute.flat_parameters import FlatParameters
from p2pswarm.compute.optimizer import optimizer_of
from p2pswarm.compute.precision import precision_of
from p2pswarm.compute.reference import ReferenceTrainer
from p2pswarm.config import RunConfig
from p2pswarm.models.blocks import block_count

CPU = torch.device("cpu")
NEAREST = "nearest"
COMMITS = 9


class NearestTrainer(ReferenceTrainer):
    """The plain loop; a run of that name has its weights rounded to the nearest after each step."""

    def __init__(self, run: RunConfig, device: torch.device | None = None) -> None:
        super().__init__(run, device)
        self._nearest = run.name == NEAREST

    def apply(self, scale: float, learning_rate: float) -> None:
        """Update, and round."""
        super().apply(scale, learning_rate)
        if self._nearest:
            with torch.no_grad():
                self.flat.params_N.copy_(self.flat.params_N.to(torch.bfloat16))


def ways_of(run: RunConfig) -> dict[str, RunConfig]:
    """The four ways, by their names."""
    low = dataclasses.replace(run, precision="bf16")
    return {
        "float32": run,
        "bf16": low,
        "by chance": dataclasses.replace(low, weight_storage="bf16"),
        NEAREST: dataclasses.replace(low, name=NEAREST),
    }


def memory_of(run: RunConfig) -> dict[str, float]:
    """The tensors of one stage that has all blocks, in bytes a parameter."""
    flat = FlatParameters(run, range(block_count(run.model)), CPU)
    count = sum(p.numel() for p in flat.parameters)
    found = {
        "weights": flat.params_N.nbytes,
        "moments": flat.exp_avg_N.nbytes + flat.exp_avg_sq_N.nbytes,
        "sum": flat.sum_N.nbytes,
        "average of sums": flat.sum_N.nbytes,  # as `GradientMemory` takes it
    }
    own = {x.untyped_storage().data_ptr() for x in (*flat.state(), flat.sum_N)}
    leaves = [leaf.untyped_storage() for leaf in precision_of(run, flat).parameters]
    copies = {each.data_ptr(): each.nbytes() for each in leaves if each.data_ptr() not in own}
    found["copies to compute with"] = sum(copies.values())
    found["newcomer downloads"] = sum(x_N.nbytes for x_N in flat.state())
    return {name: nbytes / count for name, nbytes in found.items()}


def commit_s(ways: Mapping[str, RunConfig]) -> dict[str, float]:
    """The processor time of one commit, the median of some that take turns."""
    optimizers = {}
    for name, run in ways.items():
        flat = FlatParameters(run, range(block_count(run.model)), CPU)
        flat.draw()
        optimizers[name] = optimizer_of(run.optimizer, flat)
    gradient_N = torch.randn(flat.length)
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1, COMMITS + 1):
        for name, optimizer in optimizers.items():
            begun_s = time.process_time()
            optimizer.step(gradient_N, Update(number, 1.0, 1e-4))
            took_s[name].append(time.process_time() - begun_s)
    return {name: statistics.median(each[1:]) for name, each in took_s.items()}


def main() -> None:
    """Train all, compare, and weigh."""
    options = parser_of(__doc__.partition("\n")[0]).parse_args()
    ways = ways_of(base_run(options))
    side_by_side.ReferenceTrainer = NearestTrainer  # type: ignore[misc]
    found = train_side_by_side(ways, options)
    full = found["float32"].held_out
    for name, each in found.items():
        print(f"held-out loss: {name} {each.held_out:.5f} ({each.held_out / full - 1:+.3%})")
    del ways[NEAREST]
    memory = {name: memory_of(run) for name, run in ways.items()}
    for name, parts in memory.items():
        told = ", ".join(f"{part} {nbytes:.2f}" for part, nbytes in parts.items())
        print(f"bytes a parameter: {name}: {told}")
    took_s = commit_s(ways)
    for name, seconds in took_s.items():
        print(f"processor time of a commit: {name} {1e3 * seconds:.1f} ms")
    if options.json:
        held_out = {name: each.held_out for name, each in found.items()}
        figures = {"held_out": held_out, "memory": memory, "commit_s": took_s}
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
