"""Averaging within a stage: a butterfly, in which each member reduces a share for all.

Member j of the group owns shard j. It receives everybody's part of it, adds them in the group's
order, and sends the result to all members and observers, encoded; it keeps what that encoding
decodes to, so all hold the same bytes. The sums themselves are only read, so an averaging that
fails can be had again with whoever is left.

Units:   seconds.
Errors:  Refused that names the peer with whom an averaging failed; NotServing for an order or a
         piece of an older generation.
Source:  butterfly all-reduce as in "Moshpit SGD" (arXiv 2103.03239) and hivemind's averaging.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from p2pswarm.allreduce.base import AveragedGradient, Compute, Sums
from p2pswarm.allreduce.plan import ShardPiece
from p2pswarm.allreduce.round import ExpectedPiece, Round, RoundId
from p2pswarm.errors import BadMessage, Busy, NotServing, Refused, SwarmError
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

EARLY_MAX = 512  # pieces that wait for their order: eight of each of 64 members
EARLY_S = 30.0  # the order is a call to us while theirs is under way: seconds apart at most
PIECE_S = 120.0  # 16 MiB at 140 kB/s; the trainer gives up before
SENDS_MAX = 16  # pieces on their way from here at once: 256 MiB, 1 s at 2 Gbit/s
OBSERVED_MAX = 256  # pieces under way to newcomers; one that is slower has to join again
LOOK_S = 0.05  # between two looks into the view
VIEW_LOOKS = 100  # the view that names a member may come after the order that does
BUSY_MAX_S = 1.0  # between two tries at a peer without memory for us

Find = Callable[[bytes], Contact | None]
"""Where a member of the run is dialled."""


class _OngoingRound:
    """A round, its memory, and whoever waits for its pieces."""

    def __init__(self, round_: Round, sums: Sums) -> None:
        self.round = round_
        self.sums = sums
        self.scope = asyncio.timeout(None)
        """Moved to the past, it ends the round."""
        self.parts: dict[int, dict[bytes, Tensor]] = defaultdict(dict)
        """Of the pieces that we reduce, by piece and sender."""
        self._moved = asyncio.Event()

    def came(self, wanted: ExpectedPiece) -> None:
        """Wake those who wait."""
        self.round.came(wanted)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def until(self, here: Callable[[], bool]) -> None:
        """Wait for pieces."""
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
    ) -> None:
        """`tasks` are those of the server's life; sends to newcomers run in it."""
        me = rpc.contact.peer
        assert me is not None, "we know our own id"
        self._me = me.raw
        self._rpc = rpc
        self._tensors = tensors
        self._compute = compute
        self._find = find
        self._tasks = tasks
        self._standing: _OngoingRound | None = None
        self._newest = RoundId(-1, 0)
        self._ordered = asyncio.Event()
        self._sends = asyncio.Semaphore(SENDS_MAX)
        self._early = 0
        self._observed = 0

    async def average(self, order: Reduce, sums: Sums) -> AveragedGradient:
        """Do what the trainer ordered; `sums` then holds the reduced gradient."""
        round_ = Round(order, self._me, sums.length)
        if round_.turn <= self._newest:
            raise NotServing(f"{round_.turn} comes after {self._newest}")
        if self._standing is not None:
            self._standing.scope.reschedule(asyncio.get_running_loop().time())
        standing = self._standing = _OngoingRound(round_, sums)
        self._newest = round_.turn
        ordered, self._ordered = self._ordered, asyncio.Event()
        ordered.set()
        try:
            async with standing.scope:
                await self._take_part(standing)
                return await self._compute(sums.outcome)
        except TimeoutError:
            raise NotServing(f"a newer averaging took the place of {round_.turn}") from None
        finally:
            if self._standing is standing:
                self._standing = None

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive one piece; it may be here before its order."""
        standing = await self._standing_of(RoundId(shard.step, shard.generation))
        sender = stream.peer.raw
        wanted, piece = standing.round.expect(sender, shard)
        async with self._tensors.accept(stream, (shard.tensor,)) as coming:
            await stream.send(coming.grant)
            (tensor,) = await coming.tensors()
            if shard.gathered:
                await self._compute(lambda: standing.sums.place(piece.span, tensor))
            else:
                standing.parts[shard.index][sender] = tensor
            standing.came(wanted)

    async def _standing_of(self, turn: RoundId) -> _OngoingRound:
        if self._early >= EARLY_MAX:
            raise Busy("too many pieces wait for their order")
        self._early += 1
        try:
            async with asyncio.timeout(EARLY_S):
                while self._newest < turn:
                    await self._ordered.wait()
        except TimeoutError:
            raise NotServing(f"no order to average {turn}") from None
        finally:
            self._early -= 1
        if self._standing is None or self._standing.round.turn != turn:
            raise NotServing(f"the averaging of {turn} is over")
        return self._standing

    async def _take_part(self, standing: _OngoingRound) -> None:
        round_ = standing.round
        theirs: dict[int, list[int]] = defaultdict(list)
        for index, piece in enumerate(round_.pieces):
            if round_.adds and round_.order.group[piece.owner] != self._me:
                theirs[piece.owner].append(index)
        try:
            async with asyncio.TaskGroup() as tasks:
                for indices in theirs.values():
                    tasks.create_task(self._send_parts(standing, indices))
                for index in round_.mine:
                    tasks.create_task(self._reduce(standing, index, tasks))
                tasks.create_task(standing.until(lambda: not round_.wanted))
        except BaseExceptionGroup as failed:
            raise cause_of(failed) from None

    async def _send_parts(self, standing: _OngoingRound, indices: list[int]) -> None:
        """Our part of all pieces of one owner, one after another."""
        order = standing.round.order
        for index in indices:
            piece = standing.round.pieces[index]
            encoded_tensor = await self._encoded(standing, piece)
            message = _shard(order, index, encoded_tensor, gathered=False)
            await self._send(order.group[piece.owner], message, encoded_tensor)

    async def _encoded(self, standing: _OngoingRound, piece: ShardPiece) -> EncodedTensor:
        return await self._compute(lambda: standing.sums.part(piece.span))

    async def _reduce(self, standing: _OngoingRound, index: int, tasks: asyncio.TaskGroup) -> None:
        """Add up a piece of ours, and give it to all."""
        round_ = standing.round
        others, order = round_.others, round_.order
        await standing.until(lambda: len(standing.parts[index]) == len(others))
        parts = standing.parts.pop(index)
        terms = [None if peer == self._me else parts[peer] for peer in order.group]
        span = round_.pieces[index].span
        encoded_tensor = await self._compute(lambda: standing.sums.reduce(span, terms))
        message = _shard(order, index, encoded_tensor, gathered=True)
        for peer in others:
            tasks.create_task(self._send(peer, message, encoded_tensor))
        for peer in order.observers:
            self._send_observer(peer, message, encoded_tensor)

    def _send_observer(self, peer: bytes, message: Shard, encoded_tensor: EncodedTensor) -> None:
        """Nobody waits for a newcomer: it gets its copy while the others go on."""
        if self._observed >= OBSERVED_MAX:
            log.warning("newcomer %s falls behind", PeerId(peer).short)
            return
        self._observed += 1
        self._tasks.create_task(self._send_quietly(peer, message, encoded_tensor))

    async def _send_quietly(
        self, peer: bytes, message: Shard, encoded_tensor: EncodedTensor
    ) -> None:
        try:
            await self._send(peer, message, encoded_tensor)
        except SwarmError as error:
            log.info("%s", error)
        finally:
            self._observed -= 1

    async def _send(self, peer: bytes, message: Shard, encoded_tensor: EncodedTensor) -> None:
        """One piece to one peer, as soon as both have room for it."""
        try:
            async with self._sends, asyncio.timeout(PIECE_S):
                to = await self._located(peer)
                while True:
                    try:
                        await self._send_once(to, message, encoded_tensor)
                    except Busy as error:
                        await asyncio.sleep(min(error.retry_after_s, BUSY_MAX_S))
                    else:
                        return
        except (SwarmError, TimeoutError) as error:
            why = str(error) or f"no room within {PIECE_S:g} s"
            raise Refused(f"averaging with {PeerId(peer).short} failed: {why}") from error

    async def _send_once(self, to: Contact, message: Shard, encoded_tensor: EncodedTensor) -> None:
        async with self._rpc.open_stream(to, message, PIECE_S) as stream:
            grant = await stream.receive()
            if not isinstance(grant, Grant):
                raise BadMessage(f"{grant} where a Grant is due")
            await self._tensors.send(stream, grant, (encoded_tensor,), Priority.TENSOR)
            if await stream.receive() is not None:
                raise BadMessage("words after the piece")

    async def _located(self, peer: bytes) -> Contact:
        for _ in range(VIEW_LOOKS):
            if to := self._find(peer):
                return to
            await asyncio.sleep(LOOK_S)
        raise Refused("no view names it")


def _shard(order: Reduce, index: int, encoded_tensor: EncodedTensor, *, gathered: bool) -> Shard:
    return Shard(order.run, order.step, order.generation, gathered, index, encoded_tensor.meta)
