"""The newcomer's side of a download: it carries out what `piece_download.py` wants.

One stream goes to each donor that is asked. Its questions go out as they come, and its answers come
in their order.
A donor that fails is one that the rules ask no more for a while.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from p2pswarm.base.errors import BadMessage, SwarmError, Unusable
from p2pswarm.base.exception_group import cause_of, raising_cause
from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import Arrival, Rpc, Stream
from p2pswarm.run.messages.state import (
    AskHashes,
    AskPiece,
    FetchBase,
    FetchPieces,
    FetchSaved,
    StateOffer,
)
from p2pswarm.run.state.piece_download import HashesWanted, PieceDownload, PieceWanted

log = logging.getLogger(__name__)
HASH_BYTES = 32
OTHER_BASE = (
    "the run's frozen weights are others than those that were read here: give serve.pretrained the "
    "files of the same revision as the other members have"
)

Wanted = PieceWanted | HashesWanted


class StateInDownload(Protocol):
    """The newcomer's memory, and the rules that say what belongs into it."""

    rules: PieceDownload
    moved: Signal
    """Fired when the rules were told something."""

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""

    async def on_piece(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place, if the rules say so."""


class Download:
    """Fills the memory of one stage from several donors; `run` it once in each session."""

    def __init__(
        self,
        rpc: Rpc,
        opening: FetchPieces | FetchSaved | FetchBase,
        state: StateInDownload,
    ) -> None:
        self._rpc = rpc
        self._opening = opening
        self._state = state
        self._talks: dict[bytes, _Talk] = {}

    async def run(
        self, donors: Callable[[], Sequence[Contact]], enough: Callable[[], bool]
    ) -> None:
        """Ask `donors`, whose answer may change, until there is `enough`."""
        try:
            with raising_cause():
                async with asyncio.TaskGroup() as tasks:
                    await self._pump(donors, enough, tasks)
                    for talk in self._talks.values():
                        talk.end()
        finally:
            self._talks = {}

    async def _pump(
        self,
        donors: Callable[[], Sequence[Contact]],
        enough: Callable[[], bool],
        tasks: asyncio.TaskGroup,
    ) -> None:
        loop, rules = asyncio.get_running_loop(), self._state.rules
        while not enough():
            contacts = {_raw(each): each for each in donors()}
            if rules.other_base:
                raise Unusable(OTHER_BASE)
            rules.donors(tuple(contacts))
            wanted = rules.wanted(loop.time())
            self._end_dropped()
            for one in wanted:
                self._talk(contacts[one.donor], tasks).ask(one)
            try:
                async with asyncio.timeout_at(rules.next_deadline_s()):
                    await self._state.moved.wait()
            except TimeoutError:
                rules.on_deadline(loop.time())

    def _talk(self, donor: Contact, tasks: asyncio.TaskGroup) -> "_Talk":
        raw = _raw(donor)
        if (talk := self._talks.get(raw)) is None:
            talk = self._talks[raw] = _Talk(raw, self._state)
            talk.task = tasks.create_task(self._ask(donor, talk))
        return talk

    async def _ask(self, donor: Contact, talk: "_Talk") -> None:
        try:
            async with self._rpc.open_stream(donor, self._opening, None) as stream:
                await talk.run(stream)
        except* (SwarmError, TimeoutError) as group:
            if self._talks.get(talk.donor) is talk:
                log.info("the download from %s stopped: %s", donor.address, cause_of(group))
                self._state.rules.donor_failed(talk.donor, asyncio.get_running_loop().time())
        finally:
            if self._talks.get(talk.donor) is talk:
                del self._talks[talk.donor]
            self._state.moved.fire()

    def _end_dropped(self) -> None:
        for blame in self._state.rules.blames():
            log.warning("%s gave damaged weights: %s", blame.donor.hex()[:12], blame.reason)
        for donor in self._state.rules.dropped():
            if (talk := self._talks.pop(donor, None)) is not None:
                talk.end()


class _Talk:
    def __init__(self, donor: bytes, state: StateInDownload) -> None:
        self.donor = donor
        self.task: asyncio.Task[None] | None = None
        self._state = state
        self._questions: asyncio.Queue[Wanted] = asyncio.Queue()
        self._asked: deque[tuple[Wanted, bytearray, Arrival]] = deque()

    def ask(self, wanted: Wanted) -> None:
        """Ask the donor, after all that it was asked before."""
        self._questions.put_nowait(wanted)

    def end(self) -> None:
        """Nothing more is wanted of it."""
        if self.task is not None:
            self.task.cancel()

    async def run(self, stream: Stream) -> None:
        """Ask and listen, until the donor has had enough."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._say(stream))
                both.create_task(self._hear(stream))
        finally:
            for _, _, arrival in self._asked:
                arrival.cancel()

    async def _say(self, stream: Stream) -> None:
        while True:
            wanted = await self._questions.get()
            size = HASH_BYTES * self._state.rules.hash_count
            if isinstance(wanted, PieceWanted):
                size = self._state.piece_bytes(wanted.piece)
            memory = bytearray(size)
            arrival = stream.expect(memoryview(memory))
            self._asked.append((wanted, memory, arrival))
            match wanted:
                case PieceWanted(_, piece, at_least):
                    await stream.send(AskPiece(piece, at_least, arrival.transfer))
                case HashesWanted(_, version):
                    await stream.send(AskHashes(version, arrival.transfer))

    async def _hear(self, stream: Stream) -> None:
        while True:
            offer = await stream.receive()
            if not isinstance(offer, StateOffer) or not self._asked:
                raise BadMessage(f"{offer} where an offer of state is due")
            wanted, memory, arrival = self._asked[0]
            if offer.known:
                await arrival.wait()
            else:
                arrival.cancel()
            self._asked.popleft()
            await self._answered(wanted, offer, memoryview(memory))
            self._state.moved.fire()

    async def _answered(self, wanted: Wanted, offer: StateOffer, data: memoryview) -> None:
        rules = self._state.rules
        match wanted:
            case PieceWanted(_, piece, _) if offer.known:
                await self._state.on_piece(self.donor, piece, offer.version, data)
            case HashesWanted(_, version) if offer.known and offer.version == version:
                hashes = [bytes(data[i : i + HASH_BYTES]) for i in range(0, len(data), HASH_BYTES)]
                rules.hashes_came(self.donor, version, hashes)
            case HashesWanted(_, version):
                rules.hashes_failed(self.donor, version)
            case PieceWanted():
                raise BadMessage("a donor offers a piece, and does not know it")


def _raw(contact: Contact) -> bytes:
    assert contact.peer is not None, "a member is known by its id"
    return contact.peer.raw
