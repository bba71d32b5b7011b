"""Averaging within a stage: a butterfly, in which each member reduces one shard for all.

Member j of the group owns shard j. It receives everybody's part of it, adds them in the group's order,
and sends the result to all members and observers, encoded; it keeps what that encoding decodes to,
so all hold the same bytes. The sums themselves are only read, so an averaging that fails can be had
again with whoever is left.

Units:   seconds.
Errors:  LinkLost or Refused that names the peer through which an averaging failed; NotServing for
         an order or a shard of an older generation.
Source:  the butterfly all-reduce of "Moshpit SGD" (arXiv 2103.03239) and hivemind, section 3.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.errors import BadMessage, Busy, NotServing, PathError, Refused, SwarmError
from p2pswarm.flow.failure import cause_of
from p2pswarm.ids import Contact, PeerId
from p2pswarm.reduce.base import Compute, Outcome, Sums
from p2pswarm.reduce.plan import Span, shards
from p2pswarm.rpc.base import Exchange, Priority, Rpc
from p2pswarm.swarm.messages import Reduce, Shard
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import Parcel
from p2pswarm.tensors.meta import Grant
from p2pswarm.tensors.service import Tensors

log = logging.getLogger(__name__)

EARLY_MAX = 256  # shards that wait for their order: two of each of 64 members, twice
EARLY_S = 20.0  # the order is a call to us while theirs is under way: seconds apart at most
SHARD_S = 600.0  # a shard of 1 GiB at 2 MB/s; the trainer gives up long before
OBSERVER_SENDS_MAX = 64  # under way to newcomers; one that is slower than that has to join again

Find = Callable[[bytes], Contact | None]
"""Where a member of the run is dialled."""


@dataclass(frozen=True, slots=True)
class Key:
    """One averaging; a later one replaces an earlier."""

    step: int
    generation: int

    def __lt__(self, other: "Key") -> bool:
        return (self.step, self.generation) < (other.step, other.generation)


class _Round:
    """One averaging as this member takes part in it."""

    def __init__(self, order: Reduce, me: bytes, sums: Sums) -> None:
        self.key = Key(order.step, order.generation)
        self.order = order
        self.sums = sums
        self.mine = order.group.index(me) if me in order.group else None
        self.spans = shards(sums.length, len(order.group))
        loop = asyncio.get_running_loop()
        self.parts: dict[bytes, asyncio.Future[Tensor]] = {}
        """From each other member, its part of our shard."""
        if self.mine is not None and self.spans[self.mine].length:
            self.parts = {p: loop.create_future() for p in order.group if p != me}
        self.gathered: dict[int, asyncio.Future[Tensor]] = {
            index: loop.create_future()
            for index, span in enumerate(self.spans)
            if index != self.mine and span.length
        }

    def slot(self, peer: bytes, shard: Shard) -> tuple[Span, asyncio.Future[Tensor]]:
        """Where a shard from `peer` belongs; BadMessage if nowhere."""
        if shard.gathered:
            waiting = self.gathered.get(shard.index)
            if shard.index >= len(self.order.group) or self.order.group[shard.index] != peer:
                waiting = None
        else:
            waiting = self.parts.get(peer) if shard.index == self.mine else None
        if waiting is None or waiting.done():
            raise BadMessage(f"shard {shard.index} of step {shard.step} is not for us")
        span = self.spans[shard.index]
        if shard.tensor.shape != (span.length,):
            raise BadMessage(f"shard {shard.index} has {span.length}, not {shard.tensor.shape}")
        return span, waiting

    def close(self) -> None:
        """Nothing more is awaited."""
        for waiting in (*self.parts.values(), *self.gathered.values()):
            waiting.cancel()


class Averaging:
    """Takes part in one averaging at a time; a newer order ends the older."""

    def __init__(self, rpc: Rpc, tensors: Tensors, compute: Compute, find: Find) -> None:
        self._rpc = rpc
        self._tensors = tensors
        self._compute = compute
        self._find = find
        self._me = _raw(rpc.contact.peer)
        self._round: _Round | None = None
        self._running: asyncio.Task[Outcome] | None = None
        self._newest = Key(-1, 0)
        self._early = 0
        self._changed = asyncio.Event()
        self._observing: dict[asyncio.Task[None], None] = {}

    async def average(self, order: Reduce, sums: Sums) -> Outcome:
        """Do what the trainer ordered; `sums` then holds the reduced gradient."""
        key = Key(order.step, order.generation)
        if not self._newest < key:
            raise NotServing(f"step {key.step} is averaged in generation {self._newest.generation}")
        self._newest = key
        if self._running is not None:
            self._running.cancel()
        current = asyncio.current_task()
        assert current is not None
        round_ = self._round = _Round(order, self._me, sums)
        self._changed.set()
        self._changed = asyncio.Event()
        self._running = running = asyncio.ensure_future(self._take_part(round_))
        try:
            return await running
        except asyncio.CancelledError:
            running.cancel()
            if current.cancelling():
                raise
            raise NotServing(f"a newer averaging took the place of {key}") from None

    def close(self) -> None:
        """End all that is under way."""
        if self._running is not None:
            self._running.cancel()
        for task in self._observing:
            task.cancel()

    async def shard(self, exchange: Exchange, shard: Shard) -> None:
        """Receive one shard; it may be here before its order."""
        round_ = await self._round_of(shard)
        span, waiting = round_.slot(exchange.peer.raw, shard)
        async with self._tensors.accept(exchange, (shard.tensor,)) as coming:
            await exchange.send(coming.grant)
            (tensor,) = await coming.tensors()
            if shard.gathered:
                await self._compute(lambda: round_.sums.place(span, tensor))
            if not waiting.done():
                waiting.set_result(tensor)

    async def _round_of(self, shard: Shard) -> _Round:
        key = Key(shard.step, shard.generation)
        if self._early >= EARLY_MAX:
            raise Busy("too many shards wait for their order")
        self._early += 1
        try:
            async with asyncio.timeout(EARLY_S):
                while self._newest < key:
                    await self._changed.wait()
        except TimeoutError:
            raise NotServing(f"no order to average step {key.step}") from None
        finally:
            self._early -= 1
        if self._round is None or self._round.key != key:
            raise NotServing(f"step {key.step} is averaged in generation {self._newest.generation}")
        return self._round

    async def _take_part(self, round_: _Round) -> Outcome:
        try:
            async with asyncio.TaskGroup() as group:
                if round_.mine is not None:
                    for index, owner in enumerate(round_.order.group):
                        if index != round_.mine and round_.spans[index].length:
                            group.create_task(self._send_part(round_, index, owner))
                    group.create_task(self._own(round_))
                for waiting in round_.gathered.values():
                    group.create_task(_arrived(waiting))
        except BaseExceptionGroup as failed:
            raise cause_of(failed) from None
        finally:
            round_.close()
        return await self._compute(round_.sums.outcome)

    async def _send_part(self, round_: _Round, index: int, owner: bytes) -> None:
        parcel = await self._compute(lambda: round_.sums.part(round_.spans[index]))
        await self._send(owner, _shard(round_.order, index, parcel, gathered=False), parcel)

    async def _own(self, round_: _Round) -> None:
        """Reduce our shard, and give it to all."""
        assert round_.mine is not None
        index, span = round_.mine, round_.spans[round_.mine]
        if not span.length:
            return
        parts: list[Tensor | None] = [
            None if peer == self._me else await round_.parts[peer] for peer in round_.order.group
        ]
        parcel = await self._compute(lambda: round_.sums.reduce(span, parts))
        message = _shard(round_.order, index, parcel, gathered=True)
        for peer in round_.order.observers:
            self._send_observer(peer, message, parcel)
        async with asyncio.TaskGroup() as group:
            for peer in round_.order.group:
                if peer != self._me:
                    group.create_task(self._send(peer, message, parcel))

    def _send_observer(self, peer: bytes, message: Shard, parcel: Parcel) -> None:
        """Nobody waits for a newcomer: it gets its copy while the others go on."""
        if len(self._observing) >= OBSERVER_SENDS_MAX:
            log.warning("%s falls behind: it is not sent step %d", PeerId(peer).short, message.step)
            return
        task = asyncio.ensure_future(self._send_quietly(peer, message, parcel))
        self._observing[task] = None
        task.add_done_callback(self._observing.pop)

    async def _send_quietly(self, peer: bytes, message: Shard, parcel: Parcel) -> None:
        try:
            await self._send(peer, message, parcel)
        except SwarmError as error:
            log.info(
                "newcomer %s was not sent step %d: %s", PeerId(peer).short, message.step, error
            )

    async def _send(self, peer: bytes, message: Shard, parcel: Parcel) -> None:
        name = PeerId(peer).short
        to = self._find(peer)
        if to is None:
            raise Refused(f"averaging step {message.step}: {name} is in no view")
        try:
            async with self._rpc.converse(to, message, SHARD_S) as exchange:
                grant = await exchange.receive()
                if not isinstance(grant, Grant):
                    raise BadMessage(f"{type(grant).__name__} where a Grant is due")
                await self._tensors.send(exchange, grant, (parcel,), Priority.TENSOR)
                if await exchange.receive() is not None:
                    raise BadMessage("words after the shard")
        except PathError as error:
            raise type(error)(f"averaging step {message.step} with {name}: {error}") from error
        except SwarmError as error:
            raise Refused(f"averaging step {message.step} with {name}: {error}") from error


async def _arrived(waiting: asyncio.Future[Tensor]) -> None:
    await waiting


def _shard(order: Reduce, index: int, parcel: Parcel, *, gathered: bool) -> Shard:
    return Shard(order.run, order.step, order.generation, gathered, index, parcel.meta)


def _raw(peer: PeerId | None) -> bytes:
    assert peer is not None
    return peer.raw
