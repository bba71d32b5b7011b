"""Averaging within a stage: a butterfly, in which each member reduces one shard for all.

Errors:  Refused, naming the peer with which an averaging failed; NotServing for an order or a piece
  of an older generation, and for who waits in a round that has failed.
Source:  butterfly all-reduce as in "Moshpit SGD" (arXiv 2103.03239) and hivemind's averaging.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from p2pswarm.base.errors import BadMessage, NotServing, SwarmError
from p2pswarm.base.exception_group import raising_cause
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import Priority, Rpc, Stream
from p2pswarm.run.averaging.base import AveragedGradient, Compute, Sums
from p2pswarm.run.averaging.piece_delivery import (
    PIECE_S,
    VIEW_S,
    DeliveryState,
    LinkBandwidth,
    PieceDelivery,
)
from p2pswarm.run.averaging.piece_lane import PIECES_MOST, PieceLane
from p2pswarm.run.averaging.round import (
    EARLY_MAX,
    OBSERVED_MAX,
    ExpectedPiece,
    MissingPieces,
    Round,
    RoundAdmission,
    RoundId,
)
from p2pswarm.run.averaging.shards import PIECE
from p2pswarm.run.messages.step import Reduce, Shard
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.codecs.meta import Grant, TensorMeta
from p2pswarm.tensors.codecs.registry import EncodedTensor
from p2pswarm.tensors.transfer import TensorTransfer

log = logging.getLogger(__name__)

EARLY_S = 30.0  # a piece waits so long for its order; members get their orders seconds apart

Find = Callable[[bytes], Contact | None]
"""Where a member of the run is dialled."""


class OngoingRound:
    """A round, its memory, and the tasks that wait for its pieces."""

    def __init__(self, round_: Round, sums: Sums, links: LinkBandwidth) -> None:
        self.round = round_
        self.sums = sums
        self.scope = asyncio.timeout(None)
        """Ends the round when its deadline is moved to the past."""
        self.parts: dict[int, dict[bytes, Tensor]] = defaultdict(dict)
        """The parts of the pieces that we reduce, by piece and sender."""
        self.ready: asyncio.Queue[int] = asyncio.Queue()
        """Pieces of ours whose parts are here."""
        self.reduced_lanes: dict[bytes, PieceLane] = defaultdict(lambda: PieceLane(PIECES_MOST))
        """The way of reduced pieces to each peer."""
        self._left_lane = Signal()
        self.links = links
        self._reduced = {index: asyncio.Event() for index in round_.mine}
        self._enough: Callable[[], bool] = lambda: False
        """What the task that takes part waits for."""
        self._came = Signal()
        self._over = asyncio.Event()
        for index in round_.mine:
            if round_.has_parts(index):
                self.ready.put_nowait(index)

    def on_piece(self, wanted: ExpectedPiece, part: Tensor | None) -> None:
        """Enter a piece that has come, and wake who waits for it."""
        if not self.round.on_piece(wanted):
            return
        if part is not None:
            self.parts[wanted.index][wanted.sender] = part
            if self.round.has_parts(wanted.index):
                self.ready.put_nowait(wanted.index)
        self._changed()

    def reduced(self, index: int) -> None:
        """Enter a piece of ours that is reduced; its senders are told."""
        self.round.reduced(index)
        self._reduced[index].set()
        self._changed()

    def revealed(self, sender: bytes, shard: Shard) -> None:
        """Enter a member's share of the key."""
        self.round.revealed(sender, shard)
        self._changed()

    def stopped(self, wanted: ExpectedPiece) -> None:
        """Enter that nothing more of an offer will come; if half of it came, the round fails."""
        self.round.stopped(wanted)
        self._changed()

    async def until_reduced(self, index: int) -> None:
        """Wait for a piece of ours; NotServing if the round ends without it."""
        await self._reduced[index].wait()
        if not self.round.is_reduced(index):
            raise NotServing(f"the averaging of {self.round.turn} has failed")

    async def has(self, enough: Callable[[], bool]) -> None:
        """Wait until the round has `enough`; raises the round's failure. One task may wait."""
        self._enough = enough
        while not enough():
            if self.round.failure is not None:
                raise self.round.failure
            await self._came.wait()

    def _changed(self) -> None:
        """Wake the task that waits, if it has what it waits for: n members send it 2 n pieces."""
        if self.round.failure is not None or self._enough():
            self._came.fire()

    @asynccontextmanager
    async def on_its_way(
        self, lane: PieceLane, encoded: EncodedTensor | None
    ) -> AsyncIterator[None]:
        """Wait until a piece may go to its peer; inside the block it does."""
        size_bytes = 0 if encoded is None else encoded.meta.encoded_bytes
        while not lane.fits(size_bytes):
            await self._left_lane.wait()
        lane.enter(size_bytes)
        try:
            yield
        finally:
            lane.leave(size_bytes)
            self._left_lane.fire()

    def end(self) -> None:
        """The round is over, well or not: nobody waits for it any more."""
        for reduced in self._reduced.values():
            reduced.set()
        self._over.set()

    async def until_members_have_all(self) -> None:
        """Wait for the end of the round; NotServing if it failed."""
        await self._over.wait()
        if not self.round.key_shares.whole:
            raise NotServing(f"the averaging of {self.round.turn} has failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingSettings:
    """The limits of one member's averaging, and its secret."""

    piece: int = PIECE
    """Elements of a piece; all members of a run must have the same."""
    secret: bytes = b""
    """Nobody else may know it: no member can then foresee the key of a digest."""

    tied: bool = False
    """True if it averages the tensor that two stages have in common, beside another one."""
    second: bool = False
    """True if it averages what another one has made, as the second round of an order."""
    early_max: int = EARLY_MAX
    observed_max: int = OBSERVED_MAX
    early_s: float = EARLY_S
    piece_s: float = PIECE_S
    view_s: float = VIEW_S


class Averaging:
    """Takes part in one averaging at a time; a newer order ends the older.

    Member j of the group owns shard j. It receives the part of every other member, adds the parts
    in the group's order, encodes the result, and sends it to all members and observers. It keeps
    what that encoding decodes to, so all hold the same bytes. The sums are only read, so an
    averaging that failed can be repeated with the members that are left.

    All links of a host share its way to the internet, and a step waits for its members alone. So
    observers are sent their pieces when the members have all. With rounds back to back that is
    beside the next round, in which they get none of their own: an observer is never behind by a
    whole round. One that becomes a member with this very step is sent them at once: its stage
    waits for it next.
    """

    def __init__(
        self,
        rpc: Rpc,
        tensors: TensorTransfer,
        compute: Compute,
        find: Find,
        tasks: asyncio.TaskGroup,
        settings: AveragingSettings | None = None,
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
        self._settings = settings or AveragingSettings()
        self._admission = RoundAdmission(self._settings.early_max, self._settings.observed_max)
        self._ongoing: dict[Round, OngoingRound] = {}
        self._ordered, self._viewed = Signal(), Signal()

    def members_changed(self) -> None:
        """A new view is here: it may name a peer that a delivery looks for."""
        self._viewed.fire()

    def lacks(self) -> MissingPieces:
        """Return of whom something has not come."""
        return sum((round_.lacks for round_ in self._ongoing), MissingPieces())

    def end_before(self, turn: RoundId) -> None:
        """A newer order is here: an averaging of an older one ends."""
        for round_, ongoing in self._ongoing.items():
            if round_.turn < turn:
                ongoing.scope.reschedule(asyncio.get_running_loop().time())

    async def average(
        self, order: Reduce, sums: Sums, links: LinkBandwidth | None = None
    ) -> AveragedGradient:
        """Do what the trainer ordered; `sums` then holds the reduced gradient.

        `links`: what is measured of them, if another averaging is under way beside this one.
        """
        settings = self._settings
        given = order, self._me, sums.length, settings.piece
        round_ = Round(*given, cut=sums.cut, tied=settings.tied, second=settings.second)
        if (ended := self._admission.begin(round_)) is not None:
            self._ongoing[ended].scope.reschedule(asyncio.get_running_loop().time())
        ongoing = self._ongoing[round_] = OngoingRound(round_, sums, links or LinkBandwidth())
        self._ordered.fire()
        try:
            async with ongoing.scope:
                await self._take_part(ongoing)
                outcome = await self._compute(partial(sums.outcome, round_.key_shares.key))
                return replace(outcome, bytes_per_s=ongoing.links.bytes_per_s)
        except TimeoutError:
            raise NotServing(f"a newer averaging took the place of {round_.turn}") from None
        finally:
            ongoing.end()
            self._admission.end(round_)
            del self._ongoing[round_]

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive one piece; it may come before its order.

        The stream of a part ends when the piece is reduced. So its sender learns at once that the
        owner is lost, and sends no more than the owner can add.
        """
        ongoing = await self._ongoing_of(RoundId(shard.step, shard.generation))
        sums, sender = ongoing.sums, stream.peer.raw
        if shard.index == len(ongoing.round.pieces):
            return ongoing.revealed(sender, shard)
        wanted, piece = ongoing.round.expect(sender, shard)
        try:
            if shard.gathered:
                landing = sums.landing(piece.span, shard.tensor)
                tensor = await self._receive(ongoing, wanted, stream, shard.tensor, landing)
                await self._compute(partial(sums.place, piece.span, tensor))
                ongoing.on_piece(wanted, None)
            else:
                ongoing.on_piece(
                    wanted, await self._receive(ongoing, wanted, stream, shard.tensor, None)
                )
        finally:
            ongoing.stopped(wanted)
        if not shard.gathered:
            await ongoing.until_reduced(shard.index)
        return None

    async def _receive(
        self,
        ongoing: OngoingRound,
        wanted: ExpectedPiece,
        stream: Stream,
        meta: TensorMeta,
        landing: memoryview | None,
    ) -> Tensor | None:
        """Receive a piece's bytes into its landing, or else as a tensor."""
        clock, flows = asyncio.get_running_loop().time, ongoing.links.received
        if landing is None:
            async with self._tensors.accept(stream, (meta,)) as coming:
                ongoing.round.granted(wanted)
                flows.begin(wanted.sender, clock())
                await stream.send(coming.grant)
                (tensor,) = await coming.tensors()
                flows.end(wanted.sender, meta.encoded_bytes, clock())
                return tensor
        arrival = stream.expect(landing)
        try:
            ongoing.round.granted(wanted)
            flows.begin(wanted.sender, clock())
            await stream.send(Grant((arrival.transfer,)))
            await arrival.wait()
            flows.end(wanted.sender, meta.encoded_bytes, clock())
        finally:
            arrival.cancel()
        return None

    async def _ongoing_of(self, turn: RoundId) -> OngoingRound:
        self._admission.enter_early()
        try:
            async with asyncio.timeout(self._settings.early_s):
                while (round_ := self._admission.find(turn)) is None:
                    await self._ordered.wait()
        except TimeoutError:
            raise NotServing(f"no order to average {turn}") from None
        finally:
            self._admission.leave_early()
        return self._ongoing[round_]

    async def _take_part(self, ongoing: OngoingRound) -> None:
        with raising_cause():
            async with asyncio.TaskGroup() as tasks:
                for owner, indices in ongoing.round.parts_to_send.items():
                    queue, lane = iter(indices), PieceLane(ongoing.round.parts_ahead)
                    for _ in range(min(ongoing.round.parts_ahead, len(indices))):
                        tasks.create_task(self._send_parts(ongoing, owner, queue, lane))
                tasks.create_task(self._reduce_mine(ongoing, tasks))
                tasks.create_task(self._reveal(ongoing, tasks))

    async def _reveal(self, ongoing: OngoingRound, tasks: asyncio.TaskGroup) -> None:
        """Tell our share of the key once every piece is here; wait for those of the others."""
        round_ = ongoing.round
        await ongoing.has(lambda: round_.complete)
        if round_.adds:
            message = round_.reveal(self._settings.secret)
            receivers = round_.key_shares.receivers(round_.order.observers)
            self._tell_shares(ongoing, tasks, receivers, message)
        await ongoing.has(lambda: round_.key_shares.whole)
        if round_.key_shares.collects:
            everybody = round_.others + round_.order.observers
            self._tell_shares(ongoing, tasks, everybody, round_.all_shares())

    def _tell_shares(
        self,
        ongoing: OngoingRound,
        tasks: asyncio.TaskGroup,
        peers: Iterable[bytes],
        message: Shard,
    ) -> None:
        for peer in peers:
            if peer in ongoing.round.order.observers:
                self._send_to_observer(ongoing, peer, message)
            else:
                tasks.create_task(self._send(ongoing, peer, message))

    async def _send_parts(
        self, ongoing: OngoingRound, owner: bytes, queue: Iterator[int], lane: PieceLane
    ) -> None:
        for index in queue:
            span = ongoing.round.pieces[index].span
            encoded = await self._compute(partial(ongoing.sums.part, span))
            message = ongoing.round.shard(index, encoded.meta, gathered=False)
            async with ongoing.on_its_way(lane, encoded):
                await self._send(ongoing, owner, message, encoded)

    async def _reduce_mine(self, ongoing: OngoingRound, tasks: asyncio.TaskGroup) -> None:
        """Reduce our pieces as their parts come, and send each to all at once."""
        round_ = ongoing.round
        for _ in round_.mine:
            index = await ongoing.ready.get()
            parts, span = ongoing.parts.pop(index, {}), round_.pieces[index].span
            terms = [None if peer == self._me else parts.pop(peer) for peer in round_.order.group]
            encoded = await self._compute(partial(ongoing.sums.reduce, span, terms))
            del terms
            ongoing.reduced(index)
            message = round_.shard(index, encoded.meta, gathered=True)
            for peer in round_.others:
                tasks.create_task(self._send_reduced(ongoing, peer, message, encoded))
            for peer in round_.order.observers:
                self._send_to_observer(ongoing, peer, message, encoded)

    def _send_to_observer(
        self,
        ongoing: OngoingRound,
        peer: bytes,
        message: Shard,
        encoded: EncodedTensor | None = None,
    ) -> None:
        """Send something to a newcomer; nobody waits for that."""
        if self._admission.enter_observed():
            self._tasks.create_task(self._send_quietly(ongoing, peer, message, encoded))
        else:
            log.warning("newcomer %s falls behind", PeerId(peer).short)

    async def _send_reduced(
        self, ongoing: OngoingRound, peer: bytes, message: Shard, encoded: EncodedTensor | None
    ) -> None:
        async with ongoing.on_its_way(ongoing.reduced_lanes[peer], encoded):
            await self._send(ongoing, peer, message, encoded)

    async def _send_quietly(
        self, ongoing: OngoingRound, peer: bytes, message: Shard, encoded: EncodedTensor | None
    ) -> None:
        try:
            if peer not in ongoing.round.prompt:
                await ongoing.until_members_have_all()
            await self._send_reduced(ongoing, peer, message, encoded)
        except SwarmError as error:
            log.info("%s", error)
        finally:
            self._admission.leave_observed()

    async def _send(
        self,
        ongoing: OngoingRound,
        peer: bytes,
        message: Shard,
        encoded: EncodedTensor | None = None,
    ) -> None:
        """Send one piece to one peer, as soon as both have memory; a share of the key has none."""
        loop, settings = asyncio.get_running_loop(), self._settings
        now_s = loop.time()
        delivery = PieceDelivery(peer, now_s, piece_s=settings.piece_s, view_s=settings.view_s)
        while delivery.state is not DeliveryState.SENT:
            if delivery.failure is not None:
                raise delivery.failure
            delivery.located(self._find(peer))
            try:
                async with asyncio.timeout_at(delivery.next_deadline_s()):
                    match delivery.state:
                        case DeliveryState.SENDING:
                            await self._send_once(ongoing, delivery, message, encoded)
                            delivery.sent()
                        case DeliveryState.SEEKING:
                            await self._viewed.wait()
                        case _:
                            await asyncio.Event().wait()  # its receiver said when to come again
            except SwarmError as error:
                delivery.failed(error, loop.time())
            except TimeoutError:
                delivery.on_deadline(loop.time())

    async def _send_once(
        self,
        ongoing: OngoingRound,
        delivery: PieceDelivery,
        message: Shard,
        encoded: EncodedTensor | None,
    ) -> None:
        clock, flows = asyncio.get_running_loop().time, ongoing.links.sent
        assert delivery.to is not None, "it was located"
        async with self._rpc.open_stream(delivery.to, message, self._settings.piece_s) as stream:
            if encoded is not None:
                grant = await stream.receive()
                if not isinstance(grant, Grant):
                    raise BadMessage(f"{grant} where a Grant is due")
                flows.begin(delivery.peer, clock())
                await self._tensors.send(stream, grant, (encoded,), Priority.TENSOR)
                flows.end(delivery.peer, encoded.meta.encoded_bytes, clock())
            if await stream.receive() is not None:
                raise BadMessage("a message after the piece")
