"""How much longer a stage's steps take while its state is saved; memory, optimizer, files are real.

A replica commits one step after another; between two commits the processor is busy for `--step-s`,
as with forwards and backwards. The same steps are done in turns: without a checkpoint, and with one
that begins after the first commit of `--every`. It prints the time that commits took, how much
longer they took with a checkpoint, as a share of all steps, and how many checkpoints became whole.

    python bench/checkpoint_stall.py --mb 1000 --step-s 2 --every 20 --json stall.json
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pswarm.checkpoint.names import CheckpointId  # noqa: E402 - found by the line above
from p2pswarm.checkpoint.saving import save_stage  # noqa: E402
from p2pswarm.checkpoint.stage_writing import StageToSave  # noqa: E402
from p2pswarm.checkpoint.targets import open_store  # noqa: E402
from p2pswarm.compute.base import Update  # noqa: E402
from p2pswarm.compute.parameter_names import layout_of  # noqa: E402
from p2pswarm.compute.torch_weights import torch_engine  # noqa: E402
from p2pswarm.config import ModelConfig, RunConfig  # noqa: E402
from p2pswarm.errors import NotSaved, NotServing  # noqa: E402
from p2pswarm.models.partition import stage_blocks  # noqa: E402
from p2pswarm.roles.stage import StageThreads  # noqa: E402
from p2pswarm.state.version_reader import HeldVersion, VersionReader  # noqa: E402
from p2pswarm.tensors.state_tree import root_of  # noqa: E402

MB = 1_000_000
WRITER = "bbbbbbbb"
RATE = 1e-4


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
        window = (window_mib << 20) // state.part_bytes(0)
        self.reader = VersionReader(state, lambda: self.version, self.threads.aside, window)
        self.sums = self.engine.weights.reduction()
        self.saved = self.failed = 0

    async def commit(self) -> float:
        """Apply a step, as a replica does; the seconds that it took."""
        begun_s = time.perf_counter()
        async with self.reader.changing():
            update = Update(self.version + 1, 1.0, RATE)
            await self.threads.compute(lambda: self.engine.weights.apply(self.sums, update))
            self.version += 1
        self.digest = root_of(await self.threads.background(self.engine.weights.hashes))
        return time.perf_counter() - begun_s

    async def save(self) -> None:
        """Write a checkpoint of the present version."""
        blocks = stage_blocks(self.run, 0)
        what = StageToSave(
            id=CheckpointId(self.run.name, bytes(16), self.version),
            stage=0,
            stages=1,
            blocks=blocks,
            layout=layout_of(self.run, blocks),
            state_digest=self.digest,
        )
        with self.reader.hold() as held:
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


def compute_for(seconds: float) -> None:
    """Keep the processor busy, as forwards and backwards do."""
    x, end_s = torch.randn(384, 384), time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        x = torch.tanh(x @ x / 20)


async def steps(stage: Stage, options: argparse.Namespace, *, saving: bool) -> list[float]:
    """The seconds of each commit."""
    took_s = []
    async with asyncio.TaskGroup() as tasks:
        for step in range(options.every):
            took_s.append(await stage.commit())
            if saving and step == 0:
                tasks.create_task(stage.save())
            await stage.threads.compute(lambda: compute_for(options.step_s))
    return took_s


async def measure(options: argparse.Namespace) -> dict[str, float]:
    stage = Stage(run_of(options.mb), options.folder, options.window_mib)
    plain_s, saved_s = [], []
    await stage.commit()  # the pages of the moments are touched
    for _ in range(options.rounds):
        plain_s += await steps(stage, options, saving=False)
        saved_s += await steps(stage, options, saving=True)
    stage.threads.close()
    usual_s = statistics.median(plain_s)
    extra_s = sum(saved_s) - sum(plain_s)
    return {
        "state_mb": round(stage.engine.state_bytes / MB, 1),
        "step_s": options.step_s + usual_s,
        "commit_s_median": usual_s,
        "commit_s_max_while_saving": max(saved_s),
        "stall_share": extra_s / (len(saved_s) * (options.step_s + usual_s)),
        "saved": stage.saved,
        "failed": stage.failed,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--step-s", type=float, default=2.0, help="computing between two commits")
    parser.add_argument("--every", type=int, default=20, help="steps from checkpoint to checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window-mib", type=int, default=96, help="serve.checkpoint_mib")
    parser.add_argument("--folder", type=Path, default=Path("checkpoint-stall"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.folder.exists():
        sys.exit(f"error: {options.folder} is there already: name a folder that is not")
    try:
        figures = asyncio.run(measure(options))
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:26} {value:.4g}")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
