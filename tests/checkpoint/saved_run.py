"""A run with checkpoints in virtual time: the trainer, its servers, torch and files are real."""

import asyncio
import random
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.catalogue import folders
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.run.resume import begun_from, proof_of, resumed_from
from p2pswarm.progress.events import Report
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.run.router import Router
from p2pswarm.run.schedule import learning_rate
from p2pswarm.server.member_session import SavingLimits, ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.settings.node_config import CheckpointConfig
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator_io.chain_start import founding_start
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom, SavingPlan
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.participant import Trainer

CONFIG = RunConfig(
    name="saved",
    stages=2,
    steps=6,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12, dtype="float64"),
    optimizer=OptimizerConfig(
        learning_rate=1e-2, warmup_steps=3, decay_steps=40, clip_norm=1e6
    ),  # the rounding of the norm depends on the cut, and the sum of two on nothing
    batch=BatchConfig(microbatches=2, rows=2, evaluate_every=0),
    codecs=CodecConfig(activation="raw", gradient="raw", averaging="raw"),
)
TRAINER = Identity.generate(b"trainer")


def corpus(config: RunConfig = CONFIG) -> Corpus:
    text = np.frombuffer(random.Random(3).randbytes(20_000), dtype=np.uint8)
    shape = config.batch.rows, config.model.sequence_length
    return Corpus(text[:18_000], text[18_000:], 1, config.seed, *shape)


def plain_weights(config: RunConfig) -> list[torch.Tensor]:
    """What one loop in one process makes."""
    plain, size, text = ReferenceTrainer(config), config.batch.microbatches, corpus(config)
    for step in range(config.steps):
        for number in range(step * size, (step + 1) * size):
            plain.add(torch.from_numpy(text.microbatch(number)), number)
        plain.commit(learning_rate(config, step))
    return plain.flat.parameters


@dataclass
class SavedRun:
    """One run and its servers."""

    target: Path
    config: RunConfig
    tasks: asyncio.TaskGroup
    every_steps: int = 2
    resume: bool = False
    begin_from: str = ""
    fresh: bool = False
    origin: ResumedFrom | None = None
    nonce: bytes = bytes(16)
    reports: list[Report] = field(default_factory=list)
    on_report: Callable[[Report], None] = lambda _: None
    said: list[str] = field(default_factory=list)
    running: dict[int, asyncio.Task] = field(default_factory=dict)
    engines: dict[int, object] = field(default_factory=dict)
    processes: dict[int, SimRpc] = field(default_factory=dict)
    servers: dict[int, StageServer] = field(default_factory=dict)
    pace_s: float = 0.02

    def __post_init__(self) -> None:
        self.world = SimWorld(5)
        text = corpus(self.config)
        digest = text.digest()
        origin = self.origin
        if self.resume:
            origin = resumed_from(str(self.target), self.config, digest, self.said.append)
        if self.begin_from:
            place, tell = self.begin_from, self.said.append
            origin = begun_from(place, self.config, digest, tell, fresh=self.fresh)
        self.identity = RunIdentity(
            self.config, digest, self.nonce, TRAINER.peer_id.raw, origin and origin.origin
        )
        saving = SavingPlan(
            config=CheckpointConfig(target=str(self.target), every_steps=self.every_steps),
            store=open_store(str(self.target), TRAINER.peer_id.short),
            identity=TRAINER,
            corpus=digest,
        )
        self.rpc = self.world.rpc(TRAINER.peer_id)
        self.chain = founding_start(TRAINER, self.identity.run, self.config, self.identity.origin)
        self.trainer = Trainer(
            TrainerContext(
                rpc=self.rpc,
                tensors=TensorTransfer(Budget()),
                run=self.config,
                run_id=self.identity.run,
                corpus=text,
                report=self._reported,
                rng=random.Random(5),
                chain=self.chain,
                saving=saving,
                origin=origin,
                began=self.identity.origin,
                proof=proof_of(self.identity, origin),
            )
        )

    def _reported(self, report: Report) -> None:
        self.reports.append(report)
        self.on_report(report)

    def seen(self, kind: type) -> list:
        return [report for report in self.reports if isinstance(report, kind)]

    def serve(
        self, number: int, limits: SavingLimits | None = None, drawn: int | None = None, **changes
    ) -> None:
        """Start a server, with an identity of its own; its first weights come from seed `drawn`."""
        seed = self.config.seed if drawn is None else drawn

        async def compute(work):
            await asyncio.sleep(self.pace_s)
            return work()

        def make_engine(stage: int):
            config = replace(self.config, seed=seed)
            before = self.identity.origin.before if self.identity.origin else 0
            engine = torch_engine(config, stage, torch.device("cpu"), 1 << 30, before=before)
            self.engines[number] = engine
            return engine

        context = ServerContext(
            rpc=self.world.rpc(PeerId(bytes([number]) * 32)),
            tensors=TensorTransfer(Budget()),
            run=self.config,
            run_id=self.identity.run,
            trainer=self.rpc.contact,
            compute=compute,
            make_engine=make_engine,
            make_router=lambda: Router(random.Random(number)),
            say=self.said.append,
            origin=self.identity.origin,
            saving=limits or SavingLimits(targets=(str(self.target),)),
        )
        server = self.servers[number] = StageServer(replace(context, **changes))
        own = context.rpc.suspension.context.copy()
        self.running[number] = self.tasks.create_task(server.run(), context=own)
        self.processes[number] = context.rpc

    def weights(self) -> list[torch.Tensor]:
        """The parameters of all stages."""
        flats = {e.weights._flat.numbers.start: e.weights._flat for e in self.engines.values()}
        return [p for _, flat in sorted(flats.items()) for p in flat.parameters]

    def kill(self, number: int) -> None:
        """A server's process dies, and its memory with it."""
        self.running[number].cancel()
        self.world.kill(PeerId(bytes([number]) * 32), silent=False)
        del self.engines[number]

    def server_of(self, stage: int) -> int:
        """The server that came first to a stage."""
        first = stage_blocks(self.config, stage).start
        return next(n for n, e in self.engines.items() if e.weights._flat.numbers.start == first)

    def stop(self) -> None:
        """All servers die at once."""
        for task in self.running.values():
            task.cancel()


@asynccontextmanager
async def saved_run(target: Path, config: RunConfig = CONFIG, **values):
    """A run whose trainer is there, with a checkpoint every two steps."""
    async with asyncio.TaskGroup() as tasks:
        run = SavedRun(target, config, tasks, **values)
        async with run.trainer:
            yield run
        run.stop()


def steps_saved(target: Path) -> list[int]:
    """The steps of the checkpoints in a target, the oldest first."""
    store = open_store(str(target))
    return sorted(n.step for n in folders(store) if "manifest.json" in store.entries(n.text))


def virtual(story, limit_s: float = 600.0):
    async def limited():
        async with asyncio.timeout(limit_s):
            return await story()

    return run_simulated(limited(), seed=1)
