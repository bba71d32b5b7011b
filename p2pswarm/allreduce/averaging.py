"""Averaging within a stage: a butterfly, in which each member reduces one shard for all.

Member j of the group owns shard j. It receives the part of every other member and adds the parts in
the group's order. It encodes the result, and sends it to all members and observers. It keeps what
that encoding decodes to, so all hold the same bytes. The sums are only read, so an averaging that
failed can be repeated with the members that are left.

Units:   seconds.
Errors:  Refused, naming the peer with which an averaging failed; NotServing for an order or a
         piece of an older generation.
Source:  butterfly all-reduce as in "Moshpit SGD" (arXiv 2103.03239) and hivemind's averaging.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.allreduce.base import AveragedGradient, Compute, Sums
from p2pswarm.allreduce.delivery import PIECE_S, VIEW_S, DeliveryState, PieceDelivery
from p2pswarm.allreduce.round import ExpectedPiece, Round, RoundId
from p2pswarm.allreduce.turns import EARLY_MAX, OBSERVED_MAX, Turns
from p2pswarm.errors import BadMessage, NotServing, SwarmError
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Priority, Rpc, Stream
from p2pswarm.swarm.messages.averaging import Shard
from p2pswarm.swarm.messages.step import Reduce
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.tensors.meta import Grant
from p2pswarm.tensors.transfer import TensorTransfer

log = logging.getLogger(__name__)

EARLY_S = 30.0  # a piece waits so long for its order; members get their orders seconds apart
SENDS_MAX = 16  # pieces on their way from here at once: 256 MiB, 1 s at 2 Gbit/s

Find = Callable[[bytes], Contact | None]
"""Where a member of the run is dialled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingLimits:
    """The limits of one member's averaging."""

    early_max: int = EARLY_MAX
    observed_max: int = OBSERVED_MAX
    early_s: float = EARLY_S
    piece_s: float = PIECE_S
    view_s: float = VIEW_S


class _OngoingRound:
    """A round, its memory, and the tasks that wait for its pieces."""

    def __init__(self, round_: Round, sums: Sums) -> None:
        self.round = round_
        self.sums = sums
        self.scope = asyncio.timeout(None)
        """Ends the round when its deadline is moved to the past."""
        self.parts: dict[int, dict[bytes, Tensor]] = defaultdict(dict)
        """The parts of the pieces that we reduce, by piece and sender."""
        self._moved = asyncio.Event()

    def came(self, wanted: ExpectedPiece) -> None:
        """Enter a piece that has come, and wake the tasks that wait."""
        self.round.came(wanted)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def until(self, here: Callable[[], bool]) -> None:
        """Wait until `here` holds; it is asked again after every piece."""
        while not here():
            await self._moved.wait()


class Averaging:
    """Takes part in one averaging at a time; a newer order ends the older."""

    def __init__(
        self,
        rpc: Rpc,
        tensors: TensorTransfer,
        compute: Compute,
        find: Find,
        tasks: asyncio.TaskGroup,
        limits: AveragingLimits | None = None,
    ) -> None:
        """`tasks`: the task group of the server's session; sends to newcomers run in it."""
        me = rpc.contact.peer
        assert me is not None, "we know our own id"
        self._me = me.raw
        self._rpc = rpc
        self._tensors = tensors
        self._compute = compute
        self._find = find
        self._tasks = tasks
        self._limits = limits or AveragingLimits()
        self._turns = Turns(self._limits.early_max, self._limits.observed_max)
        self._ongoing: dict[Round, _OngoingRound] = {}
        self._ordered = asyncio.Event()
        self._viewed = asyncio.Event()
        self._sends = asyncio.Semaphore(SENDS_MAX)

    def members_changed(self) -> None:
        """A new view is here: it may name a peer that a delivery looks for."""
        viewed, self._viewed = self._viewed, asyncio.Event()
        viewed.set()

    async def average(self, order: Reduce, sums: Sums) -> AveragedGradient:
        """Do what the trainer ordered; `sums` then holds the reduced gradient."""
        round_ = Round(order, self._me, sums.length)
        if (ended := self._turns.begin(round_)) is not None:
            self._ongoing[ended].scope.reschedule(asyncio.get_running_loop().time())
        ongoing = self._ongoing[round_] = _OngoingRound(round_, sums)
        ordered, self._ordered = self._ordered, asyncio.Event()
        ordered.set()
        try:
            async with ongoing.scope:
                await self._take_part(ongoing)
                return await self._compute(sums.outcome)
        except TimeoutError:
            raise NotServing(f"a newer averaging took the place of {round_.turn}") from None
        finally:
            self._turns.end(round_)
            del self._ongoing[round_]

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive one piece; it may come before its order."""
        ongoing = await self._ongoing_of(RoundId(shard.step, shard.generation))
        sender = stream.peer.raw
        wanted, piece = ongoing.round.expect(sender, shard)
        async with self._tensors.accept(stream, (shard.tensor,)) as coming:
            await stream.send(coming.grant)
            (tensor,) = await coming.tensors()
            if shard.gathered:
                await self._compute(lambda: ongoing.sums.place(piece.span, tensor))
            else:
                ongoing.parts[shard.index][sender] = tensor
            ongoing.came(wanted)

    async def _ongoing_of(self, turn: RoundId) -> _OngoingRound:
        self._turns.wait_early()
        try:
            async with asyncio.timeout(self._limits.early_s):
                while (round_ := self._turns.find(turn)) is None:
                    await self._ordered.wait()
        except TimeoutError:
            raise NotServing(f"no order to average {turn}") from None
        finally:
            self._turns.waited()
        return self._ongoing[round_]

    async def _take_part(self, ongoing: _OngoingRound) -> None:
        round_ = ongoing.round
        try:
            async with asyncio.TaskGroup() as tasks:
                for owner, indices in round_.parts_to_send.items():
                    tasks.create_task(self._send_parts(ongoing, owner, indices))
                for index in round_.mine:
                    tasks.create_task(self._reduce(ongoing, index, tasks))
                tasks.create_task(ongoing.until(lambda: round_.complete))
        except BaseExceptionGroup as failed:
            raise cause_of(failed) from None

    async def _send_parts(self, ongoing: _OngoingRound, owner: bytes, indices: list[int]) -> None:
        """Send our part of all pieces of one owner, one after another."""
        for index in indices:
            encoded = await self._encoded(ongoing, index)
            message = ongoing.round.shard(index, encoded.meta, gathered=False)
            await self._send(owner, message, encoded)

    async def _encoded(self, ongoing: _OngoingRound, index: int) -> EncodedTensor:
        span = ongoing.round.pieces[index].span
        return await self._compute(lambda: ongoing.sums.part(span))

    async def _reduce(self, ongoing: _OngoingRound, index: int, tasks: asyncio.TaskGroup) -> None:
        """Reduce one of our pieces, and send it to all."""
        round_ = ongoing.round
        await ongoing.until(lambda: round_.has_parts(index))
        parts, span = ongoing.parts.pop(index, {}), round_.pieces[index].span
        terms = [None if peer == self._me else parts[peer] for peer in round_.order.group]
        encoded = await self._compute(lambda: ongoing.sums.reduce(span, terms))
        message = round_.shard(index, encoded.meta, gathered=True)
        for peer in round_.others:
            tasks.create_task(self._send(peer, message, encoded))
        for peer in round_.order.observers:  # nobody waits for a newcomer
            if self._turns.serve_observer():
                self._tasks.create_task(self._send_quietly(peer, message, encoded))
            else:
                log.warning("newcomer %s falls behind", PeerId(peer).short)

    async def _send_quietly(self, peer: bytes, message: Shard, encoded: EncodedTensor) -> None:
        try:
            await self._send(peer, message, encoded)
        except SwarmError as error:
            log.info("%s", error)
        finally:
            self._turns.served_observer()

    async def _send(self, peer: bytes, message: Shard, encoded: EncodedTensor) -> None:
        """Send one piece to one peer, as soon as both have memory for it."""
        async with self._sends:
            loop, limits = asyncio.get_running_loop(), self._limits
            now_s = loop.time()
            delivery = PieceDelivery(peer, now_s, piece_s=limits.piece_s, view_s=limits.view_s)
            while delivery.state is not DeliveryState.SENT:
                if delivery.failure is not None:
                    raise delivery.failure
                delivery.located(self._find(peer))
                try:
                    async with asyncio.timeout_at(delivery.next_deadline_s()):
                        await self._deliver(delivery, message, encoded)
                except SwarmError as error:
                    delivery.failed(error, loop.time())
                except TimeoutError:
                    delivery.on_deadline(loop.time())

    async def _deliver(
        self, delivery: PieceDelivery, message: Shard, encoded: EncodedTensor
    ) -> None:
        """Do what the delivery needs next; the caller cancels it at the deadline."""
        match delivery.state:
            case DeliveryState.SENDING:
                assert delivery.to is not None, "it was located"
                await self._send_once(delivery.to, message, encoded)
                delivery.sent()
            case DeliveryState.SEEKING:
                await self._viewed.wait()
            case _:
                await asyncio.Event().wait()  # its receiver has said when to come again

    async def _send_once(self, to: Contact, message: Shard, encoded: EncodedTensor) -> None:
        async with self._rpc.open_stream(to, message, self._limits.piece_s) as stream:
            grant = await stream.receive()
            if not isinstance(grant, Grant):
                raise BadMessage(f"{grant} where a Grant is due")
            await self._tensors.send(stream, grant, (encoded,), Priority.TENSOR)
            if await stream.receive() is not None:
                raise BadMessage("a message after the piece")
