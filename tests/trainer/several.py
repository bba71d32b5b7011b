"""A run with several trainers and real stage servers in virtual time; any of them may be killed."""

import asyncio
import random
from pathlib import Path

import torch
from trainer.leadership.test_participant import CONFIG, corpus

from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.progress.events import Report
from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.chain_log import VoterRecords
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import VoterId
from p2pswarm.run.messages.cost import NO_PRICE
from p2pswarm.run.router import Router
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.server.member_session import SavingLimits, ServerContext
from p2pswarm.server.stage_server import StageServer
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import CheckpointConfig
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.sim.rpc import SimRpc, SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer
from p2pswarm.trainer.balance.codec_choice import CodecRules, MeasuredCodecs
from p2pswarm.trainer.coordinator_io.chain_start import ChainStart, genesis_of
from p2pswarm.trainer.coordinator_io.checkpoints import SavingPlan
from p2pswarm.trainer.coordinator_io.trainer_context import TrainerContext
from p2pswarm.trainer.leadership.participant import Trainer
from p2pswarm.trainer.members.run_cost import RunCost
from p2pswarm.trainer.reports.reports import RunFinished


def key(name: str) -> Identity:
    return Identity.generate(name.encode())


class OneTrainer:
    """A process with a trainer."""

    def __init__(self, name: str, rpc: SimRpc, trainer: Trainer) -> None:
        self.name, self.rpc, self.trainer = name, rpc, trainer
        self.ended: RunFinished | None = None
        self.weights: torch.Tensor | None = None
        self.leave = asyncio.Event()
        self.task: asyncio.Task


class ManyTrainers:
    """Trainers a, b, c ..., of which a founds the run, and numbered servers that vote."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        config: RunConfig = CONFIG,
        seed: int = 5,
        target: Path | None = None,
        codec_rule: CodecRules = MeasuredCodecs,
    ) -> None:
        """`target`: where every third step is saved; None: nowhere."""
        self.codec_rule = codec_rule
        self.price = NO_PRICE
        """Of each machine."""
        self.target = target
        self.config, self.tasks, self.world = config, tasks, SimWorld(seed)
        self.rng = random.Random(seed)
        self.run_id = run_id(run_to_json(config), nonce=b"n" * 16, founder=key("a").peer_id.raw)
        self.genesis = genesis_of(self.run_id, key("a").peer_id.raw, config)
        self.trainers: dict[str, OneTrainer] = {}
        self.disks: dict[str, MemoryChain] = {}
        self.said: list[tuple[str, Report]] = []
        self.heard = lambda name, report: None
        self.servers: dict[int, asyncio.Task] = {}
        self.serving: dict[int, StageServer] = {}

    def cost_of(self, _name: str) -> RunCost | None:
        """What adds up the cost of the run at a trainer."""
        return None

    def text_of(self, name: str) -> Corpus:
        """The text that a trainer has."""
        return corpus(self.config)

    def train(self, name: str) -> OneTrainer:
        """Start a trainer, or start one again with its disk."""
        found = name == "a" and name not in self.disks
        memory = self.genesis.voters[0].memory if found else self.rng.randbytes(8)
        store = self.disks.setdefault(name, MemoryChain(memory))
        restored = store.restored(self.genesis)
        me = key(name).peer_id
        alone = restored.votes_alone(VoterId(me.raw, store.memory))
        place = ChainStart(key(name), self.genesis, store, restored, alone, lasts=False)
        rpc = self.world.rpc(me)
        context = TrainerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=self.config,
            run_id=self.run_id,
            corpus=self.text_of(name),
            report=lambda report: self.reported(name, report),
            rng=random.Random(self.rng.random()),
            chain=place,
            trainers=tuple(one.rpc.contact for one in self.trainers.values()),
            saving=self.plan(name),
            codec_rule=self.codec_rule,
            cost=self.cost_of(name),
            price=self.price,
        )
        one = self.trainers[name] = OneTrainer(name, rpc, Trainer(context))
        one.task = self.tasks.create_task(self.live(one), context=rpc.suspension.context.copy())
        return one

    def plan(self, name: str) -> SavingPlan | None:
        if self.target is None:
            return None
        return SavingPlan(
            config=CheckpointConfig(target=str(self.target), every_steps=3),
            store=open_store(str(self.target), key(name).peer_id.short),
            identity=key(name),
            corpus=corpus(self.config).digest(),
        )

    @property
    def chain(self) -> Chain:
        """The longest that a trainer knows."""
        chains = [one.trainer._seat.learner.chain for one in self.trainers.values()]
        return max(chains, key=lambda chain: chain.head.height)

    async def live(self, one: OneTrainer) -> None:
        async with one.trainer as trainer:
            running = asyncio.ensure_future(trainer.run())
            leaving = asyncio.ensure_future(one.leave.wait())
            await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
            leaving.cancel()
            if not running.done():
                running.cancel()
                return
            one.ended = running.result()
            if trainer.leads and not one.ended.failed:
                one.weights = await self.weights(trainer)

    async def weights(self, trainer: Trainer) -> torch.Tensor:
        """All stages' parameters in one vector."""
        engines = [
            torch_engine(self.config, s, torch.device("cpu"), 0) for s in range(self.config.stages)
        ]
        tensors = len(self.config.state)
        sizes = [
            StateSize([(0, engine.state.part_bytes(0, 0) // 8)], (8,) * tensors)
            for engine in engines
        ]  # one piece
        snapshots = await trainer.weights(sizes)
        values = [torch.frombuffer(s.data, dtype=torch.float64) for s in snapshots]
        return torch.cat([value[: len(value) // tensors] for value in values])

    def reported(self, name: str, report: Report) -> None:
        self.said.append((name, report))
        self.heard(name, report)

    def of_kind(self, kind: type) -> list[tuple[str, Report]]:
        return [(name, report) for name, report in self.said if isinstance(report, kind)]

    def serve(self, number: int) -> None:
        async def compute(work):
            await asyncio.sleep(0.02)
            return work()

        config, store = self.config, MemoryChain(self.rng.randbytes(8))
        rpc = self.world.rpc(PeerId(number.to_bytes(32)))
        context = ServerContext(
            rpc=rpc,
            tensors=TensorTransfer(Budget()),
            run=config,
            run_id=self.run_id,
            trainer=next(t.rpc.contact for t in self.trainers.values() if t.rpc.running),
            compute=compute,
            make_engine=lambda s: torch_engine(config, s, torch.device("cpu"), 1 << 30),
            make_router=lambda: Router(random.Random(number)),
            voter=VoterRecords(store, store.restored(self.genesis)),
            saving=SavingLimits(targets=(str(self.target),)),
            price=self.price,
        )
        server = self.serving[number] = StageServer(context)
        self.servers[number] = self.tasks.create_task(
            server.run(), context=rpc.suspension.context.copy()
        )

    def kill_stage(self, stage: int) -> list[int]:
        """All servers of a stage die; returns which."""
        victims = [n for n, server in self.serving.items() if server.stage == stage]
        for number in victims:
            self.servers[number].cancel()
            self.world.kill(PeerId(number.to_bytes(32)), silent=False)
            del self.serving[number]
        return victims

    def kill(self, name: str, *, silent: bool = False) -> None:
        """The trainer's process dies."""
        self.trainers[name].task.cancel()
        self.world.kill(key(name).peer_id, silent=silent)

    def leaders(self) -> list[str]:
        return [name for name, one in self.trainers.items() if one.trainer.leads]
