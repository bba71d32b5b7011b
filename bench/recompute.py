"""What a graph takes when it is whole, and when it is made again: for the stage, or block by block.

    python bench/recompute.py [--d-model 256] [--layers 8] [--rows 4] [--tokens 256] [--rounds 5]
                              [--precision full|bf16] [--device cpu] [--json FILE]

A stage in the middle of a model, of so many layers. For each way: the bytes that are held between
forward and backward, the most that torch had taken during the backward with what was held before
it, without weights and sum, and the time of forward and backward, on one thread. The last way has
the setting `block` and room for no boundaries. All take turns, and their gradients are compared.
On a CPU bytes are counted by torch's profiler and time is the processor's; on a GPU bytes are the
allocator's and time is the clock's.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable

import torch
from one_stage import options_of, run_of
from rich.console import Console
from rich.table import Table
from torch import Tensor

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.compute.graphs import GraphLimits
from p2pswarm.models.compute.torch_stage import TorchStage
from p2pswarm.settings.config import RunConfig

PLENTY = 1 << 40
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


def plain_loop(run: RunConfig, way: Way) -> Callable[[], None]:
    """Block by block without torch's checkpoint: a forward without graphs, then each block whole.

    It is not exact where a weight or a tensor that passes has several uses in a block.
    """
    flat = way.flat
    shape = run.batch.rows, run.model.sequence_length, run.model.d_model
    x = torch.randn(shape, device=flat.params_N.device)

    def microbatch() -> None:
        given = [x]
        with torch.no_grad():
            for block in flat.blocks:
                given.append(block(given[-1]))
        gradient = x
        for block, value in zip(reversed(flat.blocks), reversed(given[:-1]), strict=True):
            leaf = value.detach().requires_grad_()
            wanted = [*block.parameters(), leaf]
            gradient = torch.autograd.grad([block(leaf)], wanted, [gradient])[-1]

    return microbatch


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


def main() -> None:
    """Measure all ways, compare what they give, and print."""
    options = options_of(__doc__, layers=8)
    torch.set_num_threads(1)
    run = run_of(options, cut=(1, options.layers, 1))
    device = torch.device(options.device)
    cpu = device.type == "cpu"
    ways = {name: Way(run, graphs, device) for name, graphs in WAYS.items()}
    for way in ways.values():
        way.weigh(taken_cpu if cpu else taken_cuda)
    clock = time.process_time if cpu else time.perf_counter
    loop, loop_s = plain_loop(run, ways["block by block"]), []
    for _ in range(options.rounds):
        for way in ways.values():
            way.round(clock)
        begun_s = clock()
        if cpu and options.precision == "full":
            loop()
            loop_s.append(clock() - begun_s)
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
    loop_ms = 1e3 * statistics.median(loop_s) if loop_s else 0.0
    _show(rows, same=same, weights_mb=sums[0].nbytes / MB, loop_ms=loop_ms)
    if options.json:
        found = {"options": vars(options) | {"json": ""}, "same_bits": same, "ways": rows}
        options.json.write_text(json.dumps(found, indent=2))


def _show(
    rows: dict[str, dict[str, float]], *, same: bool, weights_mb: float, loop_ms: float
) -> None:
    table = Table(title=f"the gradients of the weights take {weights_mb:.1f} MB in each backward")
    for title in (
        "way",
        "held, MB",
        "peak of the backward, MB",
        "a microbatch, ms",
        "of the first",
    ):
        table.add_column(title, justify="left" if title == "way" else "right")
    first = next(iter(rows.values()))
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['held_mb']:.1f}",
            f"{row['peak_mb']:.1f}",
            f"{row['ms']:.1f}",
            f"{row['ms'] / first['ms']:.2f}",
        )
    Console().print(table)
    if loop_ms:
        print(f"a plain loop over the blocks, which adds nothing up: {loop_ms:.1f} ms")
    print("the same bits" if same else "OTHER BITS")


if __name__ == "__main__":
    main()
