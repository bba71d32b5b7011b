"""A hostile peer of an open run, in a process of its own, which bench/strangers.py directs.

It speaks the real protocol with its own identity, a new one for each attack. It reads a line for
each: `NAME`, and an empty line for its end. It answers `ready`, and then what it was answered.
"""

import asyncio
import contextlib
import dataclasses
import json
import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch

from p2pswarm.base.errors import Busy, SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.messages import Ping
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import ForwardingRpc, Priority, Stream
from p2pswarm.net.wire.message import Message, encode
from p2pswarm.node import serve
from p2pswarm.node.run.discovery import manifests
from p2pswarm.node.run.run_choice import run_choice
from p2pswarm.node.run.run_match import readable
from p2pswarm.node.shutdown import LeaveRequest
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.run.access.messages import ShowToken, TokenShown
from p2pswarm.run.chain.messages import FetchRecords, HandOver, Heartbeat, Prepare, Propose
from p2pswarm.run.chain.record import CommitRecord, RecordKind, StageCommit, VoterId, sign
from p2pswarm.run.manifest import (
    MANIFEST_TAG,
    RUNS_KEY,
    RunIdentity,
    RunOffer,
    sign_manifest,
    signed_part,
)
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.checkpoint import LoadState, SaveState
from p2pswarm.run.messages.field_limits import TERM_MAX
from p2pswarm.run.messages.membership import (
    Apart,
    Assigned,
    Join,
    Load,
    MemberRecord,
    MoveTo,
    PrepareStage,
    Ready,
    StandsBy,
    StillThere,
    View,
    WillLeave,
)
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Push, Undelivered
from p2pswarm.run.messages.run import Manifest, RunOrigin
from p2pswarm.run.messages.state import AskHashes, AskPiece, FetchBase, FetchPieces, FetchSaved
from p2pswarm.run.messages.status import AskStatus
from p2pswarm.run.messages.step import (
    Commit,
    Committed,
    Fence,
    FencedWork,
    Reduce,
    Reduced,
    Shard,
)
from p2pswarm.run.messages.trainers import (
    Alive,
    AskReachable,
    Enlist,
    NotHeard,
    Unheard,
    Whereabouts,
    WhoLeads,
)
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig, ServeConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.codecs.meta import Dtype, Grant, TensorMeta

NOBODYS = "nobody's"
"""The name of the run that an honest node waits for; there is none but the stranger's."""
CALL_S = 2.0
PAUSE_S = 0.02  # between calls: the attacker shares this machine's processors with the run
TIB = 1 << 40
FAR = 2**40
STREAMS = 100
FORWARD_S = 0.02  # as the honest servers


@dataclass(slots=True)
class Stranger:
    """The hostile peer during one attack."""

    stack: NodeStack
    offer: RunOffer
    servers: list[Contact]
    trainers: list[Contact]
    forbidden: str
    """A folder that the run's machines have, and that no order may make them write to."""
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> bytes:
        """The run's id."""
        return self.offer.run

    @property
    def everybody(self) -> list[Contact]:
        """Trainers and servers."""
        return [*self.trainers, *self.servers]

    @property
    def me(self) -> bytes:
        """Our peer id."""
        return self.stack.identity.peer_id.raw

    @property
    def address(self) -> str:
        """Where we listen."""
        return str(self.stack.endpoint.contact.address)

    async def ask(self, to: Contact, message: Message) -> Message | None:
        """Call, and count what comes of it."""
        try:
            answer = await self.stack.rpc.call(to, message, CALL_S)
        except SwarmError as error:
            self.answers[type(error).__name__] += 1
            return None
        self.answers[type(answer).__name__] += 1
        return answer

    async def ask_all(self, make: Callable[[], Message], to: list[Contact] | None = None) -> None:
        """Ask them all, again and again."""
        while True:
            for contact in self.everybody if to is None else to:
                await self.ask(contact, make())
                await asyncio.sleep(PAUSE_S)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Count the error that a block ends with."""
        try:
            yield
        except SwarmError as error:
            self.answers[type(error).__name__] += 1

    async def hold(self, to: Contact, opening: Message, *more: Message) -> None:
        """Open a stream, say more, read what comes, to its end."""
        with self.counting():
            async with self.stack.rpc.open_stream(to, opening, None) as stream:
                self.answers["streams"] += 1
                for message in more:
                    await stream.send(message)
                while (answer := await stream.receive()) is not None:
                    self.answers[type(answer).__name__] += 1


Attack = Callable[[Stranger], Awaitable[None]]
ATTACKS: dict[str, Attack] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    """Enter a function into the table of attacks."""

    def enter(does: Attack) -> Attack:
        ATTACKS[name] = does
        return does

    return enter


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Do several things until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work)


# what only trainers may say


def forged_record(me: Stranger, height: int, term: int) -> CommitRecord:
    """A record that names us as the trainer and the only voter, signed by us."""
    voter = VoterId(me.me, bytes(8))
    stages = tuple(StageCommit((), b"", bytes(32), b"") for _ in range(me.offer.config.stages))
    record = CommitRecord(
        run=me.run,
        prev=os.urandom(32),
        term=term,
        height=height,
        step=height,
        kind=RecordKind.VOTERS,
        generation=0,
        scale=1.0,
        learning_rate=0.0,
        loss=None,
        gradient_norm=None,
        first=0,
        count=0,
        stages=stages,
        trainers=(me.me, *(one.peer.raw for one in me.trainers if one.peer)),
        voters=(voter,),
        voters_before=(voter,),
        saved=0,
        key=bytes(32),
        signature=bytes(64),
    )
    return sign(record, me.stack.identity)


@attack("enlist")
async def enlist(me: Stranger) -> None:
    """Stand by as a trainer: of the run's trainers, and of its servers."""

    async def again(to: Contact) -> None:
        while True:
            await me.hold(to, Enlist(me.run, me.address))
            await asyncio.sleep(PAUSE_S)

    await together(*map(again, me.everybody))


@attack("propose")
async def propose(me: Stranger) -> None:
    """Propose records after an unknown one, in the last of all terms."""
    record = forged_record(me, 2**40, TERM_MAX)
    near = forged_record(me, 3, TERM_MAX)
    await together(
        me.ask_all(lambda: Propose(me.run, TERM_MAX, record)),
        me.ask_all(lambda: Propose(me.run, TERM_MAX, near)),
    )


@attack("prepare")
async def prepare(me: Stranger) -> None:
    """Ask for promises, in terms that jump."""
    terms = iter(range(1 << 20, TERM_MAX, 1 << 20))
    await me.ask_all(lambda: Prepare(me.run, next(terms, TERM_MAX), os.urandom(16)))


@attack("heartbeats")
async def heartbeats(me: Stranger) -> None:
    """Say that a record far ahead is decided, and that we are handed the run."""
    await together(
        me.ask_all(lambda: Heartbeat(me.run, TERM_MAX, FAR, os.urandom(32))),
        me.ask_all(lambda: HandOver(me.run, 1, me.me)),
    )


@attack("orders")
async def orders(me: Stranger) -> None:
    """Give servers the orders of a coordinator, as calls and as streams."""
    peers = tuple(Whereabouts(os.urandom(32), "127.0.0.1:9") for _ in range(128))
    said: list[Callable[[], Message]] = [
        lambda: Commit(me.run, 0, 1, 1, 1.0, 1.0),
        lambda: Reduce(me.run, 0, 1, 1, b"\xff", (me.me,), ()),
        lambda: Fence(me.run, 0, 1, (FencedWork(0, 1000),)),
        lambda: AskReachable(me.run, TERM_MAX, peers),
        lambda: NotHeard(me.run, tuple(Unheard(os.urandom(32), 1) for _ in range(32))),
        lambda: SaveState(me.run, 0, b"", me.forbidden),
        lambda: Assigned(0, 1, 0, keep=False),
        lambda: MoveTo(0, "so"),
        lambda: View(1, 0, more=False, gone=(), joined=(), ready=()),
    ]

    async def opened(make: Callable[[], Message]) -> None:
        while True:
            for contact in me.everybody:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CALL_S):
                        await me.hold(contact, make())
                await asyncio.sleep(PAUSE_S)

    await together(*map(me.ask_all, said), *map(opened, said))


@attack("records")
async def records(me: Stranger) -> None:
    """Say that we know many records, and send forged ones to whoever asks."""

    async def send(stream: Stream, request: FetchRecords) -> None:
        me.answers["asked for records"] += 1
        height = request.height
        while True:
            await stream.send(forged_record(me, height, 1))
            height += 1

    me.stack.rpc.serve_stream(FetchRecords, send)
    await together(
        me.ask_all(lambda: WhoLeads(me.run, None, me.address, FAR)),
        *(joining(me, to, 0, records=FAR) for to in me.trainers),
    )


@attack("leaders")
async def false_leaders(me: Stranger) -> None:
    """Sign the run's manifest as its trainer, and name a false coordinator to whoever asks."""
    rpc = me.stack.rpc
    false = StandsBy(os.urandom(32), "127.0.0.1:9", TERM_MAX)
    rpc.serve_unary(WhoLeads, lambda _peer, _asked: false)
    rpc.serve_unary(ShowToken, lambda _peer, _shown: TokenShown(None, "", 0, None))

    async def stand_by(stream: Stream, _join: Message) -> None:
        me.answers["asked to be joined"] += 1
        await stream.send(false)

    rpc.serve_stream(Join, stand_by)
    await together(announcing(me, me.offer.identity), me.ask_all(lambda: false))


async def announcing(me: Stranger, run: RunIdentity) -> None:
    """Keep a run in the DHT as ours."""
    while True:
        manifest = sign_manifest(me.stack.identity, run, Address.parse(me.address))
        with me.counting():
            await me.stack.dht.long_values.put(RUNS_KEY, me.me, encode(manifest), 10.0)
            me.answers["announced"] += 1
        await asyncio.sleep(1.0)


# what a member may say


def join_of(me: Stranger, stage: int | None, **about: Any) -> Join:
    """Ask for a place."""
    return Join(me.run, me.address, stage, None, b"", (), pinned=stage is not None, **about)


async def joining(me: Stranger, to: Contact, stage: int, **about: Any) -> None:
    """Join, again and again, and say nothing."""
    while True:
        await me.hold(to, join_of(me, stage, **about))
        await asyncio.sleep(PAUSE_S)


@dataclass(slots=True)
class Member:
    """Our place in the run, which we keep by signs of life."""

    stream: Stream
    assigned: Assigned
    others: dict[int, MemberRecord] = field(default_factory=dict)
    version: int = 0

    def of_stage(self, stage: int) -> list[MemberRecord]:
        """The servers of a stage that we were told of."""
        return [one for one in self.others.values() if one.stage == stage]


async def member(
    me: Stranger,
    stage: int,
    does: Callable[[Member], Awaitable[None]],
    *,
    stays_s: float = math.inf,
) -> None:
    """Join and claim to have the weights, which costs nothing; again and again."""
    while True:
        with me.counting(), contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(None if stays_s == math.inf else stays_s),
                me.stack.rpc.open_stream(me.trainers[0], join_of(me, stage), None) as stream,
            ):
                assigned = await stream.receive()
                me.answers[type(assigned).__name__] += 1
                if isinstance(assigned, Assigned):
                    await stream.send(Ready(assigned.since, assigned.state))
                    await _serve(me, Member(stream, assigned), does)
        await asyncio.sleep(0.1)


async def _serve(me: Stranger, place: Member, does: Callable[[Member], Awaitable[None]]) -> None:
    async def live() -> None:
        while True:
            await asyncio.sleep(0.3)
            await place.stream.send(Alive())

    async def read() -> None:
        while (said := await place.stream.receive()) is not None:
            me.answers[type(said).__name__] += 1
            if isinstance(said, View):
                place.others |= {one.incarnation: one for one in said.joined}
                for over in said.gone:
                    place.others.pop(over, None)
        alive.cancel()
        work.cancel()

    try:
        async with asyncio.TaskGroup() as tasks:
            alive, work = tasks.create_task(live()), tasks.create_task(_awaited(does(place)))
            await read()
    except* SwarmError as errors:
        for error in errors.exceptions:
            me.answers[type(error).__name__] += 1


async def _awaited(work: Awaitable[None]) -> None:
    await work


async def nothing(_place: Member) -> None:
    """Say nothing more."""
    await asyncio.Event().wait()


def serving(
    me: Stranger,
    push: Callable[[Stream, Push], Coroutine[Any, Any, None]],
    reduce: Callable[[], Message] | None = None,
) -> None:
    """Answer what members are asked: `reduce` None never answers."""

    async def ordered(_peer: object, order: Message) -> Message:
        me.answers[type(order).__name__] += 1
        if isinstance(order, Reduce) and reduce is not None:
            return reduce()
        if isinstance(order, Commit) and reduce is not None:
            return Committed(order.step + 1, applied=True)
        await asyncio.Event().wait()
        raise AssertionError

    async def pushed(stream: Stream, opening: Push) -> None:
        me.answers["Push"] += 1
        await push(stream, opening)

    async def silent(stream: Stream, opening: Message) -> None:
        del stream
        me.answers[type(opening).__name__] += 1
        await asyncio.Event().wait()

    for kind in (Reduce, Commit, Fence):
        me.stack.rpc.serve_unary(kind, ordered)
    me.stack.rpc.serve_stream(Push, pushed)
    for opening in (Shard, FetchPieces):
        me.stack.rpc.serve_stream(opening, silent)


async def never(stream: Stream, push: Push) -> None:
    """Take the bytes, and never answer."""
    taken = []
    for tensor in push.tensors:
        inline = tensor.inline or not tensor.encoded_bytes
        taken.append(None if inline else stream.expect(memoryview(bytearray(tensor.encoded_bytes))))
    await stream.send(Grant(tuple(one.transfer if one else 0 for one in taken)))
    await asyncio.Event().wait()


async def ungranted(stream: Stream, _push: Push) -> None:
    """Say nothing at all."""
    del stream
    await asyncio.Event().wait()


async def busy(_stream: Stream, _push: Push) -> None:
    """Say Busy, for ever."""
    raise Busy("later", 0.05)


@attack("alive")
async def alive_flood(me: Stranger) -> None:
    """Flood the trainer with signs of life, as a member and on its other streams."""
    serving(me, never)

    async def flood(place: Member) -> None:
        while True:
            for _ in range(50):
                await place.stream.send(Alive())
            me.answers["said"] += 50
            await asyncio.sleep(PAUSE_S)

    await together(member(me, 0, flood), me.ask_all(StillThere), me.ask_all(Ping))


@attack("mute")
async def mute(me: Stranger) -> None:
    """Be ready, take microbatches and orders, and never answer any."""
    serving(me, never)
    await member(me, 0, nothing)


@attack("ungranted")
async def ungranting(me: Stranger) -> None:
    """Be ready at the other stage, and grant no push."""
    serving(me, ungranted)
    await member(me, 1, nothing)


@attack("busy")
async def busy_forever(me: Stranger) -> None:
    """Be ready, and be Busy for ever."""
    serving(me, busy, lambda: Reduced(b"x" * 32, 1.0))
    await member(me, 0, nothing)


@attack("churn")
async def churn(me: Stranger) -> None:
    """Come, be ready, and vanish, twice a second."""
    serving(me, never)
    await member(me, 0, nothing, stays_s=0.4)


@attack("counted")
async def counted(me: Stranger) -> None:
    """Say that all is counted, handed, undelivered, evaluated and apart; and average falsely."""
    serving(me, never, lambda: Reduced(os.urandom(32), 1e30))
    size = me.offer.config.batch.microbatches

    async def lie(place: Member) -> None:
        chance = Random(1)
        while True:
            step = max(place.assigned.since, 0) + chance.randrange(3)
            microbatch = step * size + chance.randrange(size)
            peer = os.urandom(32)
            others = tuple(one.peer for one in place.of_stage(place.assigned.stage))
            said: list[Message] = [
                Counted(step, microbatch, 0, counted=True, loss=1e308),
                Counted(step, microbatch, 0, counted=True, loss=-1e300),
                Handed(step, microbatch, 0, peer, 1),
                Undelivered(step, microbatch, 0, "no road", chance.randrange(3)),
                Evaluated(step, microbatch, 1e308),
                Apart(others[:100]),
                Load(2**31, 1e9, 1e9, 1e9, 2**48, 0.0, capacity=Capacity(1e9, 1e9, 1e9, 1e9)),
                Ready(step, os.urandom(32)),
                WillLeave(1e9),
                MoveTo(1, "I say so"),
            ]
            for message in said:
                await place.stream.send(message)
            me.answers["said"] += len(said)
            await asyncio.sleep(PAUSE_S)

    await member(me, 1, lie)


def pushes(me: Stranger, place: Member, one: MemberRecord, tensors: tuple[TensorMeta, ...]) -> Push:
    """A push to a server, from a member of the stage below."""
    size = me.offer.config.batch.microbatches
    step = place.assigned.since
    first = step * size
    return Push(me.run, step, first, 0, 0, one.stage, one.incarnation, (0, 1), tensors)


@attack("halves")
async def half_pushes(me: Stranger) -> None:
    """Push halves: the right shapes announced, half of the bytes sent, the stream left open."""
    serving(me, busy)
    run = me.offer.config
    width, rows, length = run.model.d_model, run.batch.rows, run.model.sequence_length
    tokens = TensorMeta(Dtype.INT32, (rows, length), 1, 4 * rows * length)
    values = TensorMeta(Dtype.FLOAT32, (rows, length, width), 1, 4 * rows * length * width)

    async def half(place: Member, one: MemberRecord) -> None:
        with me.counting():
            to = Whereabouts(one.peer, one.address).contact
            assert to is not None, "a server listens somewhere"
            opening = pushes(me, place, one, (tokens, values))
            async with me.stack.rpc.open_stream(to, opening, None) as stream:
                granted = await stream.receive()
                me.answers[type(granted).__name__] += 1
                if isinstance(granted, Grant):
                    data = memoryview(bytes(values.encoded_bytes // 2))
                    await stream.send_bulk(granted.transfers[-1], data, Priority.TENSOR)
                await asyncio.Event().wait()

    async def push(place: Member) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(STREAMS):
                for one in place.of_stage(1):
                    tasks.create_task(half(place, one))
                await asyncio.sleep(PAUSE_S)

    await member(me, 0, push)


@attack("huge")
async def huge_tensors(me: Stranger) -> None:
    """Announce tensors of a tebibyte, and send nothing: as a stranger and as a member."""
    serving(me, busy)
    whole = TensorMeta(Dtype.UINT8, (TIB,), 1, TIB)
    half = TensorMeta(Dtype.FLOAT32, (1 << 19, 1 << 18), 1, TIB // 2)

    async def announce(to: Contact, opening: Message) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_S):
                await me.hold(to, opening)

    async def as_stranger() -> None:
        while True:
            for server in me.servers:
                push = Push(me.run, 0, 0, 0, 0, 0, 1, (0,), (half, whole))
                shard = Shard(me.run, 0, 1, False, 0, whole)
                for opening in (push, shard):
                    await announce(server, opening)
                    await asyncio.sleep(PAUSE_S)

    async def as_member(place: Member) -> None:
        while True:
            for one in place.of_stage(1):
                if (to := Whereabouts(one.peer, one.address).contact) is not None:
                    await announce(to, pushes(me, place, one, (half, whole)))
            await asyncio.sleep(PAUSE_S)

    await together(as_stranger(), member(me, 0, as_member))


@attack("half-open")
async def half_open(me: Stranger) -> None:
    """Open many streams, and go on in none."""
    meta = TensorMeta(Dtype.FLOAT32, (4, 4), 1, 64)
    openings: list[Message] = [
        FetchPieces(me.run, 0),
        FetchPieces(me.run, 1),
        FetchBase(me.run, 0),
        FetchRecords(me.run, 0),
        FetchSaved(me.run, 0),
        Shard(me.run, 0, 1, False, 0, meta),
        Push(me.run, 0, 0, 0, 0, 0, 1, (0,), (meta,)),
    ]

    async def hold(number: int) -> None:
        to = me.everybody[number % len(me.everybody)]
        opening = openings[number % len(openings)]
        while True:
            with me.counting():
                async with me.stack.rpc.open_stream(to, opening, None) as stream:
                    me.answers["streams"] += 1
                    if isinstance(opening, FetchPieces | FetchBase):
                        await stream.send(AskHashes(FAR, 1))
                        await stream.send(AskPiece(2**31, FAR, 2))
                    await stream.receive()
                    await asyncio.Event().wait()
            await asyncio.sleep(1.0)

    await together(*map(hold, range(STREAMS)), me.ask_all(lambda: AskStatus(me.run)))


# servers that really serve, but for one thing


class LyingStream:
    """Implements `Stream` by another, and changes what is said on it."""

    def __init__(self, stream: Stream, say: Callable[[Message], Message], *, spoil: bool) -> None:
        self._stream, self._say, self._spoil = stream, say, spoil
        self.peer, self.receive, self.expect = stream.peer, stream.receive, stream.expect

    async def send(self, message: Message) -> None:
        """Send something like it."""
        await self._stream.send(self._say(message))

    async def send_bulk(self, transfer: int, data: memoryview, priority: Priority) -> None:
        """Send as many bytes."""
        false = memoryview(os.urandom(data.nbytes)) if self._spoil else data
        await self._stream.send_bulk(transfer, false, priority)


class LyingRpc(ForwardingRpc):
    """A server's calls, of which it changes what it says."""

    def __init__(self, me: Stranger, say: Callable[[Message], Message], *, spoils: bool) -> None:
        """`spoils`: false bytes of the state for newcomers."""
        super().__init__(me.stack.rpc)
        self._me, self._say, self._spoils = me, say, spoils

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[Stream]:
        """As `Rpc.open_stream`."""
        async with self._rpc.open_stream(to, opening, timeout_s) as stream:
            yield LyingStream(stream, self._say, spoil=False)

    def serve_unary(self, request: Any, handler: Any) -> None:
        """As `Rpc.serve_unary`."""

        async def answer(peer: Any, asked: Any) -> Message:
            made = handler(peer, asked)
            true: Message = made if isinstance(made, Message) else await made
            self._me.answers[type(asked).__name__] += 1
            return self._say(true)

        self._rpc.serve_unary(request, answer)

    def serve_stream(self, opening: Any, handler: Any) -> None:
        """As `Rpc.serve_stream`."""
        spoil = self._spoils and opening is FetchPieces

        async def attend(stream: Stream, asked: Any) -> None:
            self._me.answers[type(asked).__name__] += 1
            await handler(LyingStream(stream, self._say, spoil=spoil), asked)

        self._rpc.serve_stream(opening, attend)


async def real_server(
    me: Stranger,
    stage: int,
    say: Callable[[Message], Message],
    *,
    spoils: bool = False,
    alters: Callable[[LyingRpc], None] = lambda _rpc: None,
) -> None:
    """Serve the run with all that a server is, but for what it says."""
    calls = LyingRpc(me, say, spoils=spoils)
    alters(calls)
    stack = replace(me.stack, rpc=calls)
    serves = replace(stack.config.serve, run=me.offer.config.name, stage=stage)
    stack = replace(stack, config=replace(stack.config, serve=serves))
    threads = serve.StageThreads()
    choice = run_choice(stack.config, stack.identity.peer_id)
    try:
        while True:
            with me.counting():
                await serve.serve_next(
                    stack, choice, threads, torch.device("cpu"), LeaveRequest(), me_says(me)
                )
            await asyncio.sleep(0.5)
    finally:
        threads.close()


def me_says(me: Stranger) -> Callable[[str], None]:
    """Count what our server tells its user."""

    def say(line: str) -> None:
        me.answers[" ".join(line.split()[:2])] += 1

    return say


@attack("digests")
async def wrong_digests(me: Stranger) -> None:
    """Serve, and name other digests of what was averaged and of the weights."""

    def say(message: Message) -> Message:
        match message:
            case Reduced():
                return replace(message, digest=os.urandom(32))
            case Ready(version=version) if version % 2:
                return replace(message, digest=os.urandom(32))
        return message

    await real_server(me, 0, say)


@attack("norms")
async def wrong_norms(me: Stranger) -> None:
    """Serve, and say that the gradient has no finite norm."""

    def say(message: Message) -> Message:
        return replace(message, squared_norm=None) if isinstance(message, Reduced) else message

    await real_server(me, 0, say)


def spoilt(bundle: Any) -> Any:
    """A bundle of as many values, none of which is a number."""
    return {name: torch.full_like(x, math.nan) for name, x in bundle.items()}


def spoil_gradients(engine: Any) -> None:
    """Have a stage give gradients that are not numbers."""
    finish, backward = engine.stage.finish, engine.stage.backward

    def finishing(*given: Any) -> Any:
        made = finish(*given)
        return replace(made, gradient=spoilt(made.gradient))

    engine.stage.finish = finishing
    engine.stage.backward = lambda *given: spoilt(backward(*given))


def spoil_sums(engine: Any) -> None:
    """Have a stage's sum hold what is no number."""
    finish, sums = engine.stage.finish, vars(engine.stage)["_flat"].sum_N

    def finishing(*given: Any) -> Any:
        sums[0] = math.nan
        return finish(*given)

    engine.stage.finish = finishing


async def with_engine(me: Stranger, stage: int, spoil: Callable[[Any], None]) -> None:
    """Serve with a spoilt engine."""
    true = serve.stage_engine

    def false(*given: Any) -> Any:
        engine = true(*given)
        spoil(engine)
        return engine

    serve.stage_engine = false
    try:
        await real_server(me, stage, lambda message: message)
    finally:
        serve.stage_engine = true


async def mute_at(me: Stranger, *kinds: type[Message]) -> None:
    """Serve, and answer all but some kinds of orders."""

    async def never_answer(*_: object) -> Any:
        await asyncio.Event().wait()

    def through(rpc: LyingRpc) -> None:
        unary, streamed = rpc.serve_unary, rpc.serve_stream
        rpc.serve_unary = lambda kind, does: unary(kind, never_answer if kind in kinds else does)
        rpc.serve_stream = lambda kind, does: streamed(
            kind, never_answer if kind in kinds else does
        )

    await real_server(me, 0, lambda message: message, alters=through)


@attack("unreduced")
async def unreduced(me: Stranger) -> None:
    """Serve, count, and never answer the order to average."""
    await mute_at(me, Reduce)


@attack("unsharded")
async def unsharded(me: Stranger) -> None:
    """Serve, count, and grant no piece of an average."""
    await mute_at(me, Shard)


@attack("uncommitted")
async def uncommitted(me: Stranger) -> None:
    """Serve, average, and never answer the commit."""
    await mute_at(me, Commit)


@attack("unfenced")
async def unfenced(me: Stranger) -> None:
    """Serve, and neither compute nor answer fences once it has proven itself."""
    begun_s = asyncio.get_running_loop().time()

    def through(rpc: LyingRpc) -> None:
        unary, streamed = rpc.serve_unary, rpc.serve_stream

        def late(does: Any) -> Any:
            async def honest_first(*given: Any) -> Any:
                if asyncio.get_running_loop().time() > begun_s + 4.0:
                    await asyncio.Event().wait()
                made = does(*given)
                return made if isinstance(made, Message) else await made

            return honest_first

        rpc.serve_unary = lambda kind, does: unary(kind, late(does) if kind is Fence else does)
        rpc.serve_stream = lambda kind, does: streamed(kind, late(does) if kind is Push else does)

    await real_server(me, 0, lambda message: message, alters=through)


@attack("nan")
async def nan_gradients(me: Stranger) -> None:
    """Serve, and return gradients that are not numbers."""
    await with_engine(me, 1, spoil_gradients)


@attack("nan-sums")
async def nan_sums(me: Stranger) -> None:
    """Serve, and average sums that are not numbers."""
    await with_engine(me, 1, spoil_sums)


@attack("donor")
async def false_donor(me: Stranger) -> None:
    """Serve, and give newcomers false bytes; one newcomer after another fetches."""

    async def newcomers() -> None:
        while True:
            async with opened(me.stack.config, Identity.generate()) as stack:
                new = replace(me, stack=stack)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(5.0):
                        await real_server(new, 0, lambda message: message)

    await together(real_server(me, 0, lambda message: message, spoils=True), newcomers())


# runs that strangers offer


def hostile_settings(run: RunConfig) -> list[dict[str, Any]]:
    """Changes of a run's settings, each by the path of its key."""
    long = "x" * 100_000
    return [
        {"name": "\x1b[2J\x1b]0;owned\x07"},
        {"name": "../../../etc/passwd"},
        {"name": long},
        {"name": run.name},
        {"model.family": "os:system"},
        {"model.family": "hf", "model.package": "antigravity==1.0"},
        {"model.family": "hf", "model.hub": "attacker/model"},
        {"model.folder": "/etc"},
        {"model.d_model": 2**40},
        {"model.d_model": 2**20, "model.heads": 1},
        {"model.vocabulary": 2**31},
        {"model.layers": 10**6},
        {"model.sequence_length": 2**40},
        {"model.config": {"x" * 50_000: [[[[[[[[[[1]]]]]]]]]]}},
        {"batch.microbatches": 65_536, "batch.rows": 4096},
        {"stages": 256},
        {"steps": -1},
        {"steps": 1e400},
        {"start": "/etc/shadow"},
        {"codecs.activation": "pickle"},
        {"optimizer.name": "__import__"},
        {"cut": [0] * 10_000},
        {"owner": "0" * 64},
    ]


def hostile_manifests(me: Stranger, named: str) -> Iterator[Manifest]:
    """Manifests of runs that this node might serve, each signed as it should be."""
    plain = replace(me.offer.config, name=named, owner="")
    for changes in hostile_settings(me.offer.config):
        whole = json.loads(run_to_json(plain))
        for path, value in changes.items():
            table = whole["run"]
            *folders, last = path.split(".")
            for folder in folders:
                table = table[folder]
            table[last] = value
        key = Identity.generate()
        text = json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()[:100_000]
        unsigned = Manifest(
            *(text, os.urandom(32), os.urandom(16), key.peer_id.raw, key.public_key),
            *(me.address, b"\0" * 64, RunOrigin(os.urandom(16), 1, os.urandom(32))),
        )
        yield dataclasses.replace(unsigned, signature=key.sign(MANIFEST_TAG, signed_part(unsigned)))


@attack("manifests")
async def manifests_of_strangers(me: Stranger) -> None:
    """Offer runs with hostile names, families, targets and sizes; and one that can be joined."""

    async def offering() -> None:
        while True:
            for manifest in hostile_manifests(me, NOBODYS):
                with me.counting():
                    value = encode(manifest)
                    await me.stack.dht.long_values.put(RUNS_KEY, me.me, value, 10.0)
                    me.answers["announced"] += 1
                await asyncio.sleep(PAUSE_S)

    await together(offering(), own_run(me, replace(me.offer.config, name=NOBODYS, owner="")))


async def own_run(me: Stranger, config: RunConfig, *orders: Message) -> None:
    """Found a run, and give the servers that join it hostile orders."""
    identity = RunIdentity(config, os.urandom(32), os.urandom(16), me.me)
    loads = any(isinstance(order, LoadState) for order in orders)

    async def lead(stream: Stream, join: Join) -> None:
        me.answers["joined ours"] += 1
        with contextlib.suppress(SwarmError):
            await stream.send(Assigned(0, 1, 0, keep=False, loads=loads))
            for order in orders:
                ours = isinstance(order, SaveState | LoadState)
                await stream.send(replace(order, run=join.run) if ours else order)
            while (said := await stream.receive()) is not None:
                me.answers[f"{type(said).__name__} to us"] += 1

    rpc = me.stack.rpc
    rpc.serve_stream(Join, lead)
    rpc.serve_unary(ShowToken, lambda _peer, _shown: TokenShown(None, "", 0, None))
    rpc.serve_unary(WhoLeads, lambda _peer, _asked: StandsBy(me.me, me.address, 1))
    await announcing(me, identity)


@attack("paths")
async def hostile_paths(me: Stranger) -> None:
    """Lead a run of our own, whose orders name folders, URLs and stages."""
    run = replace(me.offer.config, name=NOBODYS, owner="")
    origin = RunOrigin(bytes(16), 1, bytes(32))
    targets = (me.forbidden, f"file://{me.forbidden}", "http://127.0.0.1:9/", "s3://x/y", "~/x")
    saves = [SaveState(bytes(16), 0, b"", target) for target in targets]
    loads = [LoadState(bytes(16), target, "../..", origin) for target in targets]
    others = PrepareStage(255), MoveTo(255, "\x1b[2J"), View(9, 7, False, (1,), (), (2,))
    turn = Random(os.urandom(4)).randrange(2)
    await own_run(me, run, *(saves if turn else loads), *saves, *others)


@attack("same-name")
async def same_name(me: Stranger) -> None:
    """Offer runs of the same name and settings, that end at once."""
    config = me.offer.config
    twin = RunIdentity(config, me.offer.identity.corpus, os.urandom(16), me.me)
    await together(announcing(me, twin), own_run(me, config))


# the process


@asynccontextmanager
async def opened(config: NodeConfig, identity: Identity) -> AsyncIterator[NodeStack]:
    """A node of ours that is up."""
    async with open_stack(config, identity, passing=True) as stack:
        yield stack


async def the_offer(stack: NodeStack, name: str) -> RunOffer:
    """The run of that name, from the DHT like anybody."""
    while True:
        for value in (await manifests(stack)).values():
            offer = readable(value)
            if offer is not None and offer.config.name == name and offer.config.owner:
                return offer
        await asyncio.sleep(0.5)


async def reading() -> AsyncIterator[str]:
    """The lines of stdin."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        yield line.strip()


async def main(bootstrap: str, name: str, forbidden: str, trainers: str, servers: str) -> None:
    """Attack as the lines of stdin say."""
    config = NodeConfig(
        role="stage",
        listen="127.0.0.1:0",
        bootstrap=(bootstrap,),
        serve=ServeConfig(device="emulated", emulated_forward_s=FORWARD_S),
    )
    lines = reading()
    async for line in lines:
        async with opened(config, Identity.generate()) as stack:
            offer = await the_offer(stack, name)
            places = [[Contact(None, Address.parse(a)) for a in part.split(",")]
                      for part in (trainers, servers)]  # fmt: skip
            known = [[await _named(stack, one) for one in part] for part in places]
            me = Stranger(stack, offer, known[1], known[0], forbidden)
            print("ready", flush=True)
            doing = asyncio.create_task(_awaited(ATTACKS[line](me)))
            stopping = asyncio.create_task(anext(lines))
            await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
            over = doing.done() and not doing.cancelled()
            await stopping
            doing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((doing,))
            if over and (failed := doing.exception()) is not None:
                me.answers[f"ended by {failed!r}"] += 1
        print(json.dumps(me.answers), flush=True)


async def _named(stack: NodeStack, place: Contact) -> Contact:
    """The contact with its peer id: a link proves it."""
    link = await stack.endpoint.link(place)
    return Contact(link.peer, place.address)


if __name__ == "__main__":
    os.nice(10)  # what it says is measured, and not that it takes this machine's processors
    asyncio.run(main(*sys.argv[1:]))
