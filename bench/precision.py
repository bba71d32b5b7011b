"""What bfloat16 costs in quality and brings in time and memory: to compute in, to keep weights in.

    python bench/precision.py --text docs --suffixes .md --d-model 128 --layers 4

Four plain loops train the same model on the same microbatches (`side_by_side.py`): in float32; with
`run.precision = "bf16"`; with `run.weight_storage = "bf16"` besides, which rounds by chance; and,
to compare, with weights that are rounded to the nearest bfloat16 after each step, which no run
does. It prints the held-out loss of each, in its own precision, the time of a step, and the mean
training loss of the last quarter of the steps, which chance moves less.

Then, for each way that a run can have: what a stage's memory is made of, in bytes a parameter, what
a newcomer downloads; and what a process takes that computes and commits a stage of all blocks of a
model `--wide-d-model` wide: its memory, the processor time of a commit, and of its hashes.
"""
# ruff: noqa: N806  shapes are written at the end of names

import dataclasses
import statistics
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import side_by_side
import torch
from proc import memory_bytes
from results import write_json
from side_by_side import base_run, parser_of, train_side_by_side

from p2pswarm.models.blocks import block_count
from p2pswarm.models.compute.base import BackwardSpec, Update
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.precision import precision_of
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.tensors.flat_layout import ITEM_BYTES

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
    own = {x.untyped_storage().data_ptr() for x in (*flat.state, flat.sum_N)}
    leaves = [leaf.untyped_storage() for leaf in precision_of(run, flat).parameters]
    copies = {each.data_ptr(): each.nbytes() for each in leaves if each.data_ptr() not in own}
    found["copies to compute with"] = sum(copies.values())
    found["newcomer downloads"] = sum(x_N.nbytes for x_N in flat.state)
    return {name: nbytes / count for name, nbytes in found.items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """What a process of one stage takes."""

    now: float
    """Its memory after some commits, without what it had before: bytes a parameter."""
    most: float
    """The same at its largest."""
    commit_s: float
    """The processor time of the optimizer's step, the median."""
    hash_s: float
    """Of the digest of weights and moments."""


def weighed(run: RunConfig) -> Weighed:
    """Compute and commit in this process, which does nothing else."""
    torch.set_num_threads(1)
    before = memory_bytes("self")
    engine = torch_engine(run, 0, CPU, 0)
    engine.weights.reset(draw=True)
    count = engine.state_bytes // sum(ITEM_BYTES[dtype] for dtype in run.state_dtypes)
    tokens_BS = torch.zeros(1, run.model.sequence_length + 1, dtype=torch.int64)
    commit_s, hash_s = [], []
    for number in range(1, COMMITS + 1):
        engine.stage.finish(tokens_BS, {}, BackwardSpec(counting=True, returning=False))
        reduced = engine.weights.reduction()
        reduced.reduce(Span(0, reduced.length), [None])
        begun_s = time.process_time()
        engine.weights.apply(reduced, Update(number, 1.0, 1e-4))
        commit_s.append(time.process_time() - begun_s)
        begun_s = time.process_time()
        engine.weights.hashes()
        hash_s.append(time.process_time() - begun_s)
    times_s = statistics.median(commit_s), statistics.median(hash_s)
    now, most = memory_bytes("self") - before, memory_bytes("self", "VmHWM") - before
    return Weighed(now / count, most / count, *times_s)


def weigh(ways: Mapping[str, RunConfig], d_model: int) -> dict[str, Weighed]:
    """Weigh a process of each way."""
    model = ModelConfig(d_model=d_model, layers=4, heads=d_model // 64, sequence_length=16)
    found = {}
    for name, way in ways.items():
        run = dataclasses.replace(way, stages=1, model=model)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            each = found[name] = pool.submit(weighed, run).result()
        print(
            f"a process: {name}: {each.now:.1f} bytes a parameter, {each.most:.1f} at most; a "
            f"commit {1e3 * each.commit_s:.0f} ms of processor, its hashes {1e3 * each.hash_s:.0f}"
        )
    return found


def main() -> None:
    """Train all, compare, and weigh."""
    parser = parser_of(__doc__.partition("\n")[0])
    parser.add_argument("--wide-d-model", type=int, default=768)
    options = parser.parse_args()
    ways = ways_of(base_run(options))
    side_by_side.ReferenceTrainer = NearestTrainer  # type: ignore[misc]
    found = train_side_by_side(ways, options)
    full = found["float32"]
    for name, each in found.items():
        print(
            f"held-out loss: {name} {each.held_out:.5f} ({each.held_out / full.held_out - 1:+.3%});"
            f" training, last quarter: {each.late:.5f} ({each.late / full.late - 1:+.3%});"
            f" a step {each.step_s:.3f} s ({full.step_s / each.step_s:.2f} times as fast)"
        )
    del ways[NEAREST]
    memory = {name: memory_of(run) for name, run in ways.items()}
    for name, parts in memory.items():
        told = ", ".join(f"{part} {nbytes:.2f}" for part, nbytes in parts.items())
        print(f"bytes a parameter: {name}: {told}")
    processes = weigh(ways, options.wide_d_model)
    held_out = {name: each.held_out for name, each in found.items()}
    step_s = {name: each.step_s for name, each in found.items()}
    weights = {name: dataclasses.asdict(each) for name, each in processes.items()}
    figures = {"held_out": held_out, "step_s": step_s, "memory": memory, "processes": weights}
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
