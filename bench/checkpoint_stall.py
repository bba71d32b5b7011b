"""How much longer a stage's steps take while its state is saved; memory, optimizer, files are real.

A replica commits one step after another; between two commits it computes, as forwards and backwards
do: the same work in every step, about `--step-s` of it. The digest of a version is made beside the
computing, as a server does it. The same steps are done in turns: without a checkpoint, and with one
that begins after the first commit of `--every`. Two things can make a step longer:

* `wait_share`: a commit **waits**, for readers of the version that it is about to change, or for
  copies of what they have not read. That is ours, whatever the machine;
* the checkpoint takes processor time, `processor_s` for each. Where the processor has nothing left,
  that is taken from training: `processor_share`, as if it were one core that all steps need. Where
  it has a core to spare, training does not notice.

`stall_share` is what a clock on the wall sees of both, and of chance: by how much the rounds with a
checkpoint took longer.

With `--gpu` computing is a **wait** of `--step-s`, as for a host whose graphics card computes: its
processor is free meanwhile for copies, hashes and files. Else the step and the checkpoint share one
processor here, and `stall_share` says how fast it hashes, not what the checkpoint holds up. The
optimizer stays real, and on the processor.

    python bench/checkpoint_stall.py --mb 1000 --step-s 2 --every 20 --json stall.json
    python bench/checkpoint_stall.py --mb 1000 --step-s 2 --every 20 --gpu --json stall-gpu.json
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from results import command_line, write_json

from p2pswarm.base.errors import NotSaved, NotServing
from p2pswarm.checkpoint.checkpoint_io import save_stage
from p2pswarm.checkpoint.names import CheckpointId
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.checkpoint.writer import StageToSave
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.node.serve import StageThreads
from p2pswarm.run.state.version_reader import HeldVersion, VersionReader
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.tensors.state_tree import root_of

MB = 1_000_000
WRITER = "bbbbbbbb"
RATE = 1e-4
CALIBRATION_S = 1.0


def run_of(mb: int) -> RunConfig:
    """A model of one stage whose state takes about so much: 12 d_model^2 parameters a layer."""
    width = 1024
    layers = max(1, round(mb * MB / 3 / 4 / (12 * width**2)))
    model = ModelConfig(d_model=width, layers=layers, heads=16)
    return RunConfig(stages=1, model=model)


class Stage:
    """A stage's memory with its optimizer, and the reader that commits wait for."""

    def __init__(self, run: RunConfig, folder: Path, window_mib: int) -> None:
        self.run, self.folder, self.version = run, folder, 0
        self.engine = torch_engine(run, 0, torch.device("cpu"), 0)
        self.engine.weights.reset(draw=True)
        self.threads = StageThreads()
        state = self.engine.state
        window = (window_mib << 20) // self.engine.part_bytes_max
        self.reader = VersionReader(state, lambda: self.version, self.threads.aside, window)
        self.sums = self.engine.weights.reduction()
        self.hashing: asyncio.Future[tuple[bytes, ...]] | None = None
        self.saved = self.failed = 0

    async def commit(self) -> float:
        """Apply a step, as a replica does; the seconds that it waited for readers."""
        await self.digest()
        begun_s = time.perf_counter()
        async with self.reader.changing():
            waited_s = time.perf_counter() - begun_s
            update = Update(self.version + 1, 1.0, RATE)
            await self.threads.compute(lambda: self.engine.weights.apply(self.sums, update))
            self.version += 1
        self.hashing = asyncio.ensure_future(self.threads.background(self.engine.weights.hashes))
        return waited_s

    async def digest(self) -> bytes:
        """The digest of the present version."""
        return root_of(await self.hashing) if self.hashing else b""

    async def save(self) -> None:
        """Write a checkpoint of the present version."""
        with self.reader.hold() as held:
            await self.write(held)

    async def write(self, held: HeldVersion) -> None:
        """Write a version that is held."""
        blocks = stage_blocks(self.run, 0)
        hashing = self.hashing  # of this version; the commit that ends it waits for that

        async def agreed() -> bytes:
            return root_of(await hashing) if hashing else b""

        what = StageToSave(
            id=CheckpointId(self.run.name, bytes(16), self.version),
            stage=0,
            stages=1,
            blocks=blocks,
            layout=layout_of(self.run, blocks),
            agreed=agreed,
        )
        try:
            store = open_store(str(self.folder), WRITER)
            await save_stage(store, what, self.source(held), WRITER)
            self.saved += 1
        except (NotSaved, NotServing) as error:
            print(f"not saved: {error}")
            self.failed += 1

    async def source(self, held: HeldVersion) -> AsyncGenerator[memoryview]:
        """Read the state in the order of a file."""
        for tensor in range(self.engine.state.tensors):
            for piece in range(self.engine.state.pieces):
                yield await held.read(tensor, piece)


@dataclass(frozen=True, slots=True)
class Round:
    """The steps from one checkpoint to the next."""

    wall_s: float
    waited_s: list[float]
    """Of each commit."""
    processor_s: float
    """Of this process."""


def work(turns: int) -> None:
    """Keep a processor busy, as forwards and backwards do."""
    x = torch.randn(384, 384)
    for _ in range(turns):
        x = torch.tanh(x @ x / 20)


def computing(step_s: float, *, gpu: bool) -> Callable[[], None]:
    """What a step computes: work for this processor, or a wait for one that is not here."""
    if gpu:
        return lambda: time.sleep(step_s)
    turns = turns_in(step_s)
    return lambda: work(turns)


def turns_in(seconds: float) -> int:
    """How much work takes about so long."""
    turns, begun_s = 0, time.perf_counter()
    while time.perf_counter() - begun_s < min(seconds, CALIBRATION_S):
        work(10)
        turns += 10
    return max(1, round(turns * seconds / (time.perf_counter() - begun_s)))


async def steps(stage: Stage, compute: Callable[[], None], count: int, *, saving: bool) -> Round:
    """Do some steps, with a checkpoint or without; a checkpoint that is late counts to its end."""
    begun_s, processor_s, waited_s = time.perf_counter(), time.process_time(), []
    async with asyncio.TaskGroup() as tasks:
        for step in range(count):
            waited_s.append(await stage.commit())
            if saving and step == 0:
                tasks.create_task(stage.save())
            await stage.threads.compute(compute)
        wall_s = time.perf_counter() - begun_s
    await stage.digest()
    return Round(wall_s, waited_s, time.process_time() - processor_s)


async def measure(options: argparse.Namespace) -> dict[str, float]:
    """Do rounds in turns, and compare."""
    stage = Stage(run_of(options.mb), options.folder, options.window_mib)
    compute = computing(options.step_s, gpu=options.gpu)
    for _ in range(2):  # the pages of the moments and of the pool of copies are touched
        await stage.commit()
    plain, saved = [], []
    for _ in range(options.rounds):
        plain.append(await steps(stage, compute, options.every, saving=False))
        saved.append(await steps(stage, compute, options.every, saving=True))
    stage.threads.close()
    usual_s = sum(one.wall_s for one in plain)
    waited_s = sum(sum(one.waited_s) for one in saved) - sum(sum(one.waited_s) for one in plain)
    processor_s = sum(one.processor_s for one in saved) - sum(one.processor_s for one in plain)
    return {
        "state_mb": round(stage.engine.state_bytes / MB, 1),
        "step_s": usual_s / options.rounds / options.every,
        "wait_share": waited_s / usual_s,
        "wait_s_max": max(wait_s for one in saved for wait_s in one.waited_s),
        "processor_s": processor_s / options.rounds,
        "processor_share": processor_s / usual_s,
        "stall_share": sum(one.wall_s for one in saved) / usual_s - 1,
        "saved": stage.saved,
        "failed": stage.failed,
    }


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=2.0, help="computing between two commits")
    parser.add_argument("--gpu", action="store_true", help="computing is a wait, see above")
    parser.add_argument("--every", type=int, default=20, help="steps from checkpoint to checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-mib", type=int, default=96, help="serve.checkpoint_mib")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-stall"))
    options = parser.parse_args()
    if options.folder.exists():
        sys.exit(f"error: {options.folder} is there already: name a folder that is not")
    try:
        figures = asyncio.run(measure(options))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:26} {value:.4g}")
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
