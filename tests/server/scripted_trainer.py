"""A trainer that does what a test says, and the run that it trains."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import torch
from server.gates import answer_leaving

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.run.member_view import view_parts
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import (
    Assigned,
    Join,
    Leaving,
    Load,
    MemberRecord,
    Ready,
    WillLeave,
)
from p2pswarm.run.messages.microbatch import Counted, Push, Receipt
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.step import (
    Commit,
    Committed,
    Fence,
    Fenced,
    FencedWork,
    NearbyCodecs,
    Reduce,
    Reduced,
    TiedGroup,
)
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.sim.rpc import SimRpc
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.meta import Grant
from p2pswarm.tensors.codecs.registry import encode
from p2pswarm.tensors.transfer import TensorTransfer

RUN_ID = b"r" * 16
CALL_S = 60.0

CONFIG = RunConfig(
    stages=2,
    model=ModelConfig(d_model=16, layers=2, heads=2, sequence_length=12, dtype="float64"),
    optimizer=OptimizerConfig(learning_rate=1e-2),
    batch=BatchConfig(microbatches=4, rows=2),
    codecs=CodecConfig(activation="raw", gradient="raw", averaging="raw"),
)
B = CONFIG.batch.microbatches


def microbatch(number: int, config: RunConfig = CONFIG) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    shape = (config.batch.rows, config.model.sequence_length + 1)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


async def answered_at_once() -> None:
    """Nothing crosses the goodbye."""


@dataclass
class Member:
    """One incarnation, as the trainer sees it."""

    contact: Contact
    record: MemberRecord
    stream: Stream
    notes: list[Message] = field(default_factory=list)
    ready: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


class ScriptedTrainer:
    """Takes servers in, and says what it is told to say."""

    def __init__(self, rpc: SimRpc, config: RunConfig) -> None:
        self.rpc, self.config = rpc, config
        self.tensors = TensorTransfer(Budget())
        self.members: dict[bytes, Member] = {}
        self.version = 0
        self.generation = 0
        self.keep: Callable[[Join], bool] = lambda join: False
        self.keep_sum: Callable[[Join], bool] = lambda join: False
        self.stage_of: Callable[[Join], int | None] = lambda join: join.stage
        self.codecs_of: Callable[[int], tuple[bytes, ...]] = lambda step: ()
        """With measured codecs: what the records choose for a step."""
        self.joins: list[Join] = []
        self.before_goodbye: Callable[[], Awaitable[object]] = answered_at_once
        """What goes on while the goodbye of a server is on its way."""
        self.leaving: list[Member] = []
        self._changed = asyncio.Event()
        self._view = 0
        self._incarnation = 0
        rpc.serve_stream(Join, self._join)

    def nearby(self, stage: int, step: int) -> tuple[NearbyCodecs, ...]:
        """What a server of a stage is told of the codecs of a step and of the next one."""
        if self.config.codecs.choice == "fixed":
            return ()
        none = (b"",) * self.config.stages
        tables = [(*(self.codecs_of(s) or none), b"") for s in (step, step + 1)]
        return tuple(NearbyCodecs(table[stage - 1], table[stage]) for table in tables)

    async def _join(self, stream: Stream, join: Join) -> None:
        self.joins.append(join)
        self._incarnation += 1
        stages = [m.record.stage for m in self.members.values()]
        where = self.stage_of(join)
        if where is None:
            where = min(range(self.config.stages), key=lambda s: (stages.count(s), s))
        raw = stream.peer.raw
        record = MemberRecord(raw, join.address, where, self._incarnation, False)
        to = Contact(stream.peer, Address.parse(join.address))
        member = self.members[raw] = Member(to, record, stream)
        keep = self.keep(join)
        state = self.state_of(where, self.version)
        terms = where, self._incarnation, self.version, keep, state
        codecs = self.nearby(where, self.version)
        await stream.send(Assigned(*terms, keep_sum=self.keep_sum(join), codecs=codecs))
        await self.publish()
        try:
            while (note := await stream.receive()) is not None:
                if isinstance(note, Ready) and note.version == self.version and not member.ready:
                    await self.make_ready(member)
                if not isinstance(note, Load):
                    member.notes.append(note)
                if isinstance(note, WillLeave):
                    self.leaving.append(member)
                    await answer_leaving(self)
                if isinstance(note, Leaving):
                    await self.before_goodbye()
                    break
                self._tick()
        finally:
            member.over.set()
            if self.members.get(raw) is member:
                del self.members[raw]
            self.leaving = [one for one in self.leaving if one is not member]
            self._tick()

    async def make_ready(self, member: Member) -> None:
        member.ready = True
        r = member.record
        member.record = MemberRecord(r.peer, r.address, r.stage, r.incarnation, True)
        await self.publish()
        await answer_leaving(self)

    async def publish(self) -> None:
        self._view += 1
        records = tuple(m.record for m in self.members.values())
        for member in tuple(self.members.values()):
            for part in view_parts(self._view, records):
                await member.stream.send(part)

    def _tick(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            await self._changed.wait()

    async def until_ready(self, count: int) -> None:
        await self.until(lambda: sum(m.ready for m in self.members.values()) == count)

    async def until_counted(self, *microbatches: int) -> None:
        """Wait until every stage has counted these."""
        stages = self.config.stages
        await self.until(lambda: all(len(self.holders(n)) == stages for n in microbatches))

    def of_stage(self, stage: int, *, ready: bool = True) -> list[Member]:
        return [
            m
            for _, m in sorted(self.members.items())
            if m.record.stage == stage and m.ready is ready
        ]

    def notes(self, kind: type) -> list:
        return [n for m in self.members.values() for n in m.notes if isinstance(n, kind)]

    def push_of(self, to: Member, number: int, attempt: int = 0, **changes) -> tuple[Push, list]:
        encoded_tensor = encode(microbatch(number, self.config), "raw")
        fields = {
            "run": RUN_ID,
            "step": self.version,
            "microbatch": number,
            "attempt": attempt,
            "work": Work.FORWARD,
            "stage": 0,
            "incarnation": to.record.incarnation,
            "counting": tuple(range(self.config.stages)),
            "tensors": (encoded_tensor.meta,),
        }
        return Push(**{**fields, **changes}), [encoded_tensor]

    async def push(self, to: Member, number: int, attempt: int = 0, **changes) -> Receipt:
        push, encoded = self.push_of(to, number, attempt, **changes)
        async with self.rpc.open_stream(to.contact, push, CALL_S) as stream:
            grant = await stream.receive()
            assert isinstance(grant, Grant)
            await self.tensors.send(stream, grant, encoded, Priority.TENSOR)
            receipt = await stream.receive()
            assert isinstance(receipt, Receipt)
            return receipt

    def holders(self, number: int) -> list[tuple[int, bytes]]:
        return sorted(
            (m.record.stage, raw)
            for raw, m in self.members.items()
            for n in m.notes
            if isinstance(n, Counted) and n.microbatch == number and n.counted
        )

    async def step_pushes(self) -> None:
        """Push the whole step round robin, and wait until every stage has counted it."""
        first = self.version * self.config.batch.microbatches
        numbers = range(first, first + self.config.batch.microbatches)
        doors = self.of_stage(0)
        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(self.push(doors[number % len(doors)], number))
        await self.until_counted(*numbers)

    def bitmap(self, member: Member) -> bytes:
        first = self.version * self.config.batch.microbatches
        bits = 0
        for note in member.notes:
            if isinstance(note, Counted) and note.step == self.version and note.counted:
                bits |= 1 << (note.microbatch - first)
        return bits.to_bytes(-(-self.config.batch.microbatches // 8), "little")

    def state_of(self, stage: int, version: int) -> bytes:
        """The digest that a ready member has told; empty before."""
        notes = [n for m in self.of_stage(stage) for n in m.notes if isinstance(n, Ready)]
        return next((n.digest for n in notes if n.version == version), b"")

    def reduce_order(self, member: Member) -> Reduce:
        stage = member.record.stage
        return Reduce(
            RUN_ID,
            self.version,
            self.generation,
            member.record.incarnation,
            self.bitmap(member),
            tuple(m.record.peer for m in self.of_stage(stage)),
            tuple(m.record.peer for m in self.of_stage(stage, ready=False)),
            tied=self.tied_group(stage),
        )

    def tied_group(self, stage: int) -> TiedGroup | None:
        """Who averages the tied tensor with the members of an end of a tied model."""
        ends = self.config.tied_ends or ()
        if stage not in ends:
            return None
        both, watching = (
            tuple(m.record.peer for end in ends for m in self.of_stage(end, ready=ready))
            for ready in (True, False)
        )
        return TiedGroup(both, watching)

    async def call(self, member: Member, request: Message) -> Message:
        return await self.rpc.call(member.contact, request, CALL_S)

    async def reduce(self) -> dict[bytes, Reduced]:
        self.generation += 1
        answers: dict[bytes, Reduced] = {}

        async def one(raw: bytes, member: Member, order: Reduce) -> None:
            answer = await self.call(member, order)
            assert isinstance(answer, Reduced)
            answers[raw] = answer

        async with asyncio.TaskGroup() as tasks:
            for raw, member in self.members.items():
                tasks.create_task(one(raw, member, self.reduce_order(member)))
        return answers

    async def commit(self, rate: float = 1e-2, scale: float = 1.0) -> dict[bytes, Committed]:
        answers: dict[bytes, Committed] = {}
        step, self.version = self.version, self.version + 1

        states = [self.state_of(stage, step) for stage in range(self.config.stages)]

        async def one(raw: bytes, member: Member) -> None:
            r = member.record
            state = states[r.stage]
            numbers = self.generation, r.incarnation, scale, rate
            codecs = self.nearby(r.stage, self.version)
            order = Commit(RUN_ID, step, *numbers, state, codecs=codecs)
            answer = await self.call(member, order)
            assert isinstance(answer, Committed)
            answers[raw] = answer

        async with asyncio.TaskGroup() as tasks:
            for raw, member in tuple(self.members.items()):
                tasks.create_task(one(raw, member))
        return answers

    async def end_step(self) -> dict[bytes, Committed]:
        """Let the members average and commit what they have counted."""
        await self.reduce()
        return await self.commit()

    async def whole_step(self) -> dict[bytes, Committed]:
        await self.step_pushes()
        return await self.end_step()

    async def fence(self, member: Member, number: int, attempt: int) -> tuple[int, ...]:
        work = (FencedWork(number, attempt),)
        order = Fence(RUN_ID, self.version, member.record.incarnation, work)
        answer = await self.call(member, order)
        assert isinstance(answer, Fenced)
        return answer.counted

    async def finish(self) -> None:
        for member in tuple(self.members.values()):
            await member.stream.send(Finished("done"))
