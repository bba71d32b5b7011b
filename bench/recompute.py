"""What a graph takes when it is whole, and when it is made again: for the stage, or block by block.

    python bench/recompute.py [--d-model 256] [--layers 8] [--rows 4] [--tokens 256] [--rounds 5]
                              [--precision full|bf16] [--device cpu] [--json FILE]
    python bench/recompute.py --compiled [--layers 4] ...

A stage in the middle of a model, of so many layers. For each way: the bytes that are held between
forward and backward, the most that torch had taken during the backward with what was held before
it, without weights and sum, and the time of forward and backward, on one thread. The last way has
the setting `block` and room for no boundaries. All take turns, and their gradients are compared.
On a CPU bytes are counted by torch's profiler and time is the processor's; on a GPU bytes are the
allocator's and time is the clock's.

`--compiled` measures `serve.compiled` instead: the time of forward and backward of one stage that
is the whole model, with it and without, in turns.
"""
# ruff: noqa: N806  shapes are written at the end of names

import argparse
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from results import command_line, show, write_json
from torch import Tensor

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig

PLENTY = 1 << 40
TOGETHER = 4  # microbatches of a round, compiled or not
MB = 1e6
WAYS = {
    "whole graph, kept": GraphLimits(PLENTY, recompute="stage"),
    "stage again": GraphLimits(0, recompute="stage"),
    "block by block": GraphLimits(PLENTY, recompute="block"),
    "block by block of the input": GraphLimits(0, recompute="block"),
}
ALL = BackwardSpec(counting=True, returning=True)


class Way:
    """A stage with some limits, and what was measured of it."""

    def __init__(self, run: RunConfig, graphs: GraphLimits, device: torch.device) -> None:
        self.flat = FlatParameters(run, stage_blocks(run, 1), device)
        self.flat.draw()
        self._stage = TorchStage(run, 1, self.flat, graphs)
        shape = run.batch.rows, run.model.sequence_length
        generator = torch.Generator().manual_seed(1)
        self._tokens_BS = torch.randint(0, 256, (shape[0], shape[1] + 1), generator=generator)
        self._x = torch.randn(*shape, run.model.d_model, generator=generator).to(device)
        self.times_s: list[float] = []
        self.held = self.peak = 0.0

    def forward(self) -> None:
        """Keep what the backward needs."""
        self._stage.forward((0, 0), self._tokens_BS, {"x": self._x})

    def backward(self) -> Tensor:
        """The gradient of what was given."""
        return self._stage.backward((0, 0), {"x": self._x}, ALL)["x"]

    def weigh(self, live: Callable[[Callable[[], object]], list[int]]) -> None:
        """Count bytes of a second microbatch; the first one measures."""
        self.forward()
        self.backward()
        self.held = live(self.forward)[-1]
        self.peak = self.held + max(live(self.backward))

    def round(self, clock: Callable[[], float]) -> None:
        """Take the time of one microbatch."""
        begun_s = clock()
        self.forward()
        self.backward()
        self.times_s.append(clock() - begun_s)


def taken_cpu(work: Callable[[], object]) -> list[int]:
    """What torch has taken and not given back, after each time that it takes some; at the end."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as told:
        work()
    events = [e for e in told.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return list(itertools.accumulate(event.nbytes() for event in events))


def taken_cuda(work: Callable[[], object]) -> list[int]:
    """The most that torch has taken more than at the beginning, and what is left of it."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    most, now = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    return [most - before, now - before]


def run_of(options: argparse.Namespace, *, cut: tuple[int, ...] = ()) -> RunConfig:
    """The run of the options: of one stage, or of the stages of `cut`."""
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


def recomputed(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Measure all ways, and compare what they give."""
    run = run_of(options, cut=(1, options.layers, 1))
    cpu = device.type == "cpu"
    ways = {name: Way(run, graphs, device) for name, graphs in WAYS.items()}
    for way in ways.values():
        way.weigh(taken_cpu if cpu else taken_cuda)
    clock = time.process_time if cpu else time.perf_counter
    for _ in range(options.rounds):
        for way in ways.values():
            way.round(clock)
    sums = [way.flat.sum_N for way in ways.values()]
    same = all(torch.equal(sums[0], other) for other in sums[1:])
    rows = {
        name: {
            "held_mb": way.held / MB,
            "peak_mb": way.peak / MB,
            "ms": 1e3 * statistics.median(way.times_s),
        }
        for name, way in ways.items()
    }
    _show(rows, same=same, weights_mb=sums[0].nbytes / MB)
    return {"options": vars(options) | {"json": ""}, "same_bits": same, "ways": rows}


def compiled(options: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Measure compiled blocks beside plain ones."""
    run = run_of(options)
    tokens_BS = torch.randint(0, 256, (options.rows, options.tokens + 1))
    counting = BackwardSpec(counting=True, returning=False)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    engines = []
    for compiles in (False, True):
        begun_s = time.monotonic()
        engine = torch_engine(run, 0, device, PLENTY, compiles=compiles)
        engine.weights.reset(draw=True)
        engine.stage.finish(tokens_BS, {}, counting)
        engines.append(engine)
        print(f"compiled {compiles}: ready after {time.monotonic() - begun_s:.1f} s", flush=True)
    times_s: list[list[float]] = [[], []]
    for _ in range(options.rounds):
        for engine, taken_s in zip(engines, times_s, strict=True):
            begun_s = clock()
            for _ in range(TOGETHER):
                engine.stage.finish(tokens_BS, {}, counting)
            taken_s.append((clock() - begun_s) / TOGETHER)
    plain_s, compiled_s = (statistics.median(each) for each in times_s)
    print(f"a microbatch: {1000 * plain_s:.1f} ms, compiled {1000 * compiled_s:.1f} ms")
    print(f"compiled is {plain_s / compiled_s:.2f} times as fast")
    return {"plain_s": plain_s, "compiled_s": compiled_s, "ratio": plain_s / compiled_s}


def main() -> None:
    """Measure, print, write."""
    parser = command_line(__doc__)
    numbers = {"d-model": 256, "layers": 0, "rows": 4, "tokens": 256, "rounds": 5}
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--precision", default="full", choices=["full", "bf16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compiled", action="store_true", help="measure serve.compiled instead")
    options = parser.parse_args()
    options.layers = options.layers or (4 if options.compiled else 8)
    torch.set_num_threads(1)
    found = (compiled if options.compiled else recomputed)(options, torch.device(options.device))
    write_json(options.json, found)


def _show(rows: dict[str, dict[str, float]], *, same: bool, weights_mb: float) -> None:
    print(f"the gradients of the weights take {weights_mb:.1f} MB in each backward")
    first = next(iter(rows.values()))
    titles = "way", "held, MB", "peak of the backward, MB", "a microbatch, ms", "of the first"
    show(
        titles,
        (
            (name, *(f"{each:.1f}" for each in row.values()), f"{row['ms'] / first['ms']:.2f}")
            for name, row in rows.items()
        ),
    )
    print("the same bits" if same else "OTHER BITS")


if __name__ == "__main__":
    main()
