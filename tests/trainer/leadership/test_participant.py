"""The trainer and real stage servers in virtual time: what comes out is what one loop makes."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from core import core_of

from p2pswarm.base.ids import PeerId
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.models.base_weights import base_layout
from p2pswarm.models.compute.base import Engine
from p2pswarm.models.compute.reference import CodecsOfStep, ReferenceTrainer
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.model_source import resolved
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.progress.events import HeldOut, Report
from p2pswarm.run.router import Router
from p2pswarm.run.schedule import learning_rate
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.server.member_session import ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.coordinator_io.chain_start import founding_start
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.participant import Trainer
from p2pswarm.trainer.reports.reports import MemberLost, RunFinished, StepDone

TRAINER = Identity.generate(b"trainer")
CONFIG = RunConfig(
    stages=2,
    steps=12,
    min_replicas=2,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12, dtype="float64"),
    optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=3, decay_steps=40),
    batch=BatchConfig(microbatches=6, rows=2, evaluate_every=4, evaluate_microbatches=2),
    codecs=CodecConfig(activation="raw", gradient="raw", averaging="raw"),
)


def corpus(config: RunConfig = CONFIG) -> Corpus:
    text = np.frombuffer(random.Random(3).randbytes(20_000), dtype=np.uint8)
    shape = config.batch.rows, config.model.sequence_length
    return Corpus(text[:18_000], text[18_000:], 1, config.seed, *shape)


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


class Swarm:
    """A trainer and servers in one simulated world."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        config: RunConfig = CONFIG,
        seed: int = 5,
        text: Corpus | None = None,
    ) -> None:
        self.config, self.tasks, self.world = config, tasks, SimWorld(seed)
        self.rng = random.Random(seed)
        self.reports: list[Report] = []
        self.on_report: Callable[[Report], None] = lambda report: None
        self.engine_of: Callable[[int, Engine], Engine] = lambda number, engine: engine
        self.running: dict[int, asyncio.Task] = {}
        self.servers: dict[int, StageServer] = {}
        rpc = self.world.rpc(TRAINER.peer_id)
        context = TrainerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=config,
            run_id=run_id(run_to_json(config)),
            corpus=text or corpus(config),
            report=self.reported,
            rng=self.rng,
            chain=founding_start(TRAINER, run_id(run_to_json(config)), config),
        )
        self.trainer = Trainer(context)
        self.context = context

    def reported(self, report: Report) -> None:
        self.reports.append(report)
        self.on_report(report)

    def serve(self, number: int, *, draws: bool = True) -> None:
        """Start a server; `draws`: it has the files of the run's model, if it needs some."""

        async def compute(work):
            await asyncio.sleep(0.02)
            return work()

        config = self.config
        context = ServerContext(
            rpc=self.world.rpc(peer(number)),
            tensors=TensorTransfer(Budget()),
            run=config,
            run_id=self.context.run_id,
            trainer=self.context.rpc.contact,
            compute=compute,
            make_engine=lambda s: self.engine_of(
                number, torch_engine(config, s, torch.device("cpu"), 1 << 30, draws=draws)
            ),
            make_router=lambda: Router(random.Random(number)),
            rejoin_s=20.0,
        )
        self.servers[number] = StageServer(context)
        self.running[number] = self.tasks.create_task(self.servers[number].run())

    def kill(self, number: int) -> None:
        """The process dies, as by SIGKILL."""
        self.running.pop(number).cancel()
        self.world.kill(peer(number), silent=False)
        self.servers.pop(number)

    def of_kind(self, kind: type) -> list:
        return [r for r in self.reports if isinstance(r, kind)]


def plain(config: RunConfig = CONFIG, codecs: CodecsOfStep = lambda _step: ()) -> ReferenceTrainer:
    loop, text = ReferenceTrainer(config, codecs=codecs), corpus(config)
    for step in range(config.steps):
        first = step * config.batch.microbatches
        for number in range(first, first + config.batch.microbatches):
            tokens = text.microbatch(number)
            loop.add(torch.from_numpy(tokens), number)
        loop.commit(learning_rate(config, step))
    return loop


VALUE_BYTES = 8  # of float64; a stage's state is one piece


async def trained(swarm: Swarm) -> tuple[RunFinished, torch.Tensor]:
    """Run to the end; all stages' parameters in one vector."""
    async with swarm.trainer as trainer:
        ended = await trainer.run()
        sizes, tensors = [], len(swarm.config.state)
        for stage in range(swarm.config.stages):
            engine = torch_engine(swarm.config, stage, torch.device("cpu"), 0)
            span = 0, engine.state.part_bytes(0, 0) // VALUE_BYTES
            sizes.append(StateSize([span], (VALUE_BYTES,) * tensors))
        snapshots = await trainer.weights(sizes)
    parts = []
    for snapshot in snapshots:
        values = torch.frombuffer(snapshot.data, dtype=torch.float64)
        parts.append(values[: len(values) // tensors])
    return ended, torch.cat(parts)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_calm_run_makes_the_weights_of_a_plain_loop(optimizer):
    config = replace(CONFIG, optimizer=replace(CONFIG.optimizer, name=optimizer))

    async def story() -> tuple[RunFinished, torch.Tensor, Swarm]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, config)
            for number in range(2, 6):
                swarm.serve(number)
            ended, weights = await trained(swarm)
        return ended, weights, swarm

    ended, weights, swarm = run_simulated(story(), seed=1)

    assert not ended.failed
    assert distance(weights, plain(config).flat.params_N.detach()) <= 1e-9
    assert [r.step for r in swarm.of_kind(StepDone)] == list(range(12))
    assert [r.step for r in swarm.of_kind(HeldOut)] == [0, 4, 8, 12]
    assert swarm.of_kind(MemberLost) == []


def test_a_kill_every_third_step_changes_nothing():
    async def story() -> tuple[RunFinished, torch.Tensor, Swarm]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks)
            for number in range(2, 6):
                swarm.serve(number)
            names = iter(range(10, 99))

            def trouble(report: Report) -> None:
                if not isinstance(report, StepDone) or report.step % 3 != 1:
                    return
                members = swarm.trainer.coordinator.members
                stages = [s for s in range(2) if len(members.ready(s)) > 1]
                if not stages:
                    return
                victim = swarm.rng.choice(members.ready(swarm.rng.choice(stages)))
                number = int.from_bytes(victim.incarnation.peer)
                loop = asyncio.get_running_loop()
                loop.call_later(swarm.rng.uniform(0.0, 1.0), swarm.kill, number)
                loop.call_later(1.5, swarm.serve, next(names))

            swarm.on_report = trouble
            ended, weights = await trained(swarm)
        return ended, weights, swarm

    ended, weights, swarm = run_simulated(story(), seed=1)

    assert not ended.failed
    assert len(swarm.of_kind(MemberLost)) >= 3
    assert distance(weights, plain().flat.params_N.detach()) <= 1e-9


@pytest.mark.parametrize("seed", core_of(range(20), [3]))
def test_members_without_files_come_and_die_and_change_nothing(monkeypatch, seed):
    """Who comes has its base from members: over slow lines, of donors that are killed meanwhile."""
    monkeypatch.setattr(base_layout, "PIECE_BYTES", 256)
    config = resolved(replace(CONFIG, cut=(2, 2), base="nf4", adapter=AdapterConfig(rank=2)))

    async def story() -> tuple[RunFinished, torch.Tensor, Swarm, set[bytes]]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, config, seed)
            rng, names = swarm.rng, iter(range(10, 99))
            engines: dict[int, Engine] = {}
            swarm.engine_of = engines.setdefault

            def come() -> None:
                number = next(names)
                swarm.serve(number, draws=False)
                rate = rng.choice([2e3, 2e4, 1e6])
                swarm.world.world.hosts[peer(number).raw].down_bytes_per_s = rate

            def die() -> None:
                members = swarm.trainer.coordinator.members
                ready = [members.ready(stage) for stage in range(config.stages)]
                spared = {m.incarnation.peer for of in ready if len(of) == 1 for m in of}
                mortal = [number for number in swarm.servers if peer(number).raw not in spared]
                swarm.kill(rng.choice(mortal))

            def trouble(report: Report) -> None:
                loop = asyncio.get_running_loop()
                if isinstance(report, StepDone) and report.step < config.steps - 3:
                    loop.call_later(rng.uniform(0.0, 1.0), come)
                    if report.step % 2:
                        loop.call_later(rng.uniform(0.0, 1.0), die)

            for number in range(2, 6):
                swarm.serve(number)
            swarm.on_report = trouble
            async with asyncio.timeout(600.0):
                ended, weights = await trained(swarm)
            roots = {e.weights.base_roots for number, e in engines.items() if e.base.roots}
        return ended, weights, swarm, roots

    ended, weights, swarm, roots = run_simulated(story(), seed=seed)

    assert not ended.failed
    assert len(swarm.of_kind(MemberLost)) >= 3
    assert len(roots) == config.stages
    assert distance(weights, plain(config).flat.params_N.detach()) <= 1e-9
