"""Resumer: finds another path for a link that needs one, and takes over links for peers.

Errors:  PathError and BadHandshake from `move`; BadHandshake for a takeover that is refused.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from p2pswarm.base.errors import BadHandshake, DialFailed, LinkLost, SwarmError, UnknownLink
from p2pswarm.base.ids import Address
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.link_paths import ControlPath, Takeover
from p2pswarm.net.endpoint.link_request import (
    NONCE_BYTES,
    RESUME,
    RESUME_ANSWER_BYTES,
    RESUME_CONFIRM_BYTES,
    UNKNOWN_LINK,
    Resume,
)
from p2pswarm.net.endpoint.path_search import (
    KEEP_S,
    PathClimb,
    PathSearch,
    better,
    doubted_last,
    was_refused,
)
from p2pswarm.net.guard.connection_limits import LinkUse
from p2pswarm.net.link.path import (
    CandidateSource,
    ClaimedCandidate,
    DialledCandidate,
    Path,
    PathCandidate,
    PathKind,
    telling_candidates,
)
from p2pswarm.net.os.attempt_stagger import AttemptStagger
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.happy_eyeballs import AttemptFailed, first_connected

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answered:
    """A connection on which the peer has said that it would go on."""

    connection: Connection
    candidate: PathCandidate
    asked: Resume
    answer: bytes

    def close(self) -> None:
        """Another one was faster."""
        self.connection.close()


class Resumer:
    """The searches under way, one a link.

    Decisions: `path_search.py`, `link_request.py`.
    """

    def __init__(
        self,
        sessions: dict[bytes, Link],
        config: TransportConfig,
        entropy: Callable[[int], bytes],
        tasks: OwnedTasks,
        paths: CandidateSource,
    ) -> None:
        """`sessions`: every link by its public name. `entropy`: returns that many random bytes."""
        self.paths = paths
        self._sessions = sessions
        self._config = config
        self._entropy = entropy
        self._tasks = tasks
        self._searching: dict[Link, None] = {}
        self._climbing: dict[Link, None] = {}
        self._offered: dict[tuple[Link, Address], None] = {}

    def want(self, link: Link) -> None:
        """Find another path for a link, unless that is being done."""
        if link not in self._searching and not self._tasks.closing:
            self._searching[link] = None
            self._tasks.spawn(self._search(link), partial(self._end_search, link))

    async def move(self, link: Link, candidate: PathCandidate) -> None:
        """Let a link go on by another candidate; the path before carries it until then."""
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                await self._take(link, await self._ask(link, candidate))
        except TimeoutError as error:
            raise DialFailed(f"the way to {link.peer.short} gives no answer") from error

    async def admit(self, connection: Connection, asked: Resume) -> None:
        """Let a connection that the peer made take over its link; BadHandshake if it may not."""
        link = self._sessions.get(asked.session)
        if link is None:
            await connection.send(UNKNOWN_LINK)
            raise BadHandshake(f"it goes on with session {asked.session.hex()}, which is unknown")
        exporter = link.session.exporter
        asked.check(exporter, link.paths.numbers)
        announced = link.records.expected
        nonce = self._entropy(NONCE_BYTES)
        await connection.send(asked.answer(exporter, nonce, announced))
        raw = await connection.receive(RESUME_CONFIRM_BYTES)
        wanted = asked.read_confirm(exporter, nonce, raw)
        path = Path(None, connection.remote, None)
        takeover = Takeover(asked.number, announced, wanted)
        await connection.become_control(ControlPath(link, path, takeover))

    def climb(self, link: Link) -> None:
        """Let a link go on by a better path as soon as there is one, unless that is being tried."""
        if link in self._climbing or self._tasks.closing:
            return
        if better(self.paths.candidates(link.contact), link.path):
            self._climbing[link] = None
            self._tasks.spawn(self._climb(link), partial(self._climbing.pop, link))

    async def _climb(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        tries = PathClimb()
        while not link.over and (
            candidates := better(self.paths.candidates(link.contact), link.path)
        ):
            path = link.path
            await _until_another(link, path, tries.next_try_s(loop.time()))
            if link.path is path and not link.over:
                await self._round(link, link.paths.marks.sound(candidates, loop.time()))

    async def wait_until_settled(self, link: Link, offered: DialledCandidate | None) -> None:
        """Wait until the link has a path or is over; `offered`: one candidate more, if known."""
        if offered is not None:
            self._offer(link, offered)
        while link.path is None and not link.over:
            link.path_change.clear()
            await link.path_change.wait()

    def _offer(self, link: Link, candidate: DialledCandidate) -> None:
        if (link, candidate.to) not in self._offered and not self._tasks.closing:
            self._offered[link, candidate.to] = None
            end = partial(self._offered.pop, (link, candidate.to))
            self._tasks.spawn(self._try_offer(link, candidate), end)

    async def _try_offer(self, link: Link, candidate: PathCandidate) -> None:
        """Try one candidate; that nobody listens there is for the search to judge."""
        try:
            await self.move(link, candidate)
        except UnknownLink:
            link.on_no_peer("its path is gone, and its peer does not know the link any more")
        except (SwarmError, OSError) as error:
            _log.debug("no path to %s: %s", link.peer.short, error)

    def _end_search(self, link: Link) -> None:
        del self._searching[link]
        if link.path is None and not link.over:  # the path that was found is gone already
            self.want(link)

    async def _search(self, link: Link) -> None:
        """Try all candidates, again and again, until the link has a path or ends."""
        loop = asyncio.get_running_loop()
        search = PathSearch(
            loop.time(), self._config.path_wait_s, peer_may_come=not link.session.dialled
        )
        doubted = link.path  # a silent one, if any
        while _needs_path(link, doubted):
            candidates = doubted_last(self._candidates(link), doubted)
            refused = await self._round(link, candidates, doubted)
            at_s = search.next_round_s(len(telling_candidates(candidates)), refused, loop.time())
            if at_s is None:
                link.on_no_peer("its path is gone, and nobody is at the other end")
                break
            if _needs_path(link, doubted):
                await _until_another(link, link.path, at_s)

    def _candidates(self, link: Link) -> Sequence[PathCandidate]:
        """The candidates to try. A peer that dialled us and is owed nothing is not dialled back."""
        if link.session.dialled or link.use is LinkUse.US:
            now_s = asyncio.get_running_loop().time()
            return link.paths.marks.in_order(self.paths.candidates(link.contact), now_s)
        return ()

    async def _round(
        self, link: Link, candidates: Sequence[PathCandidate], doubted: Path | None = None
    ) -> list[PathKind]:
        """Try every candidate once; returns the kinds of the known ones that were refused.

        If all of them were, the round is over: claims that never answer would prolong it.
        `doubted`: the path in use, if it may be dead; it is kept if it brings anything after all.
        """
        known = telling_candidates(candidates)
        stagger = AttemptStagger(link.rtt_s)
        refused: list[PathCandidate] = []

        async def ask(candidate: PathCandidate) -> _Answered:
            try:
                return await self._ask(link, candidate, stagger)
            except SwarmError as error:
                if candidate in known and was_refused(error):
                    refused.append(candidate)
                    if len(refused) == len(known):
                        raise
                raise AttemptFailed(str(error)) from error

        try:
            async with asyncio.timeout(self._config.dial_s):
                answered = await first_connected(candidates, ask, stagger)
                if doubted is not None and await _brings_something(link, doubted):
                    answered.close()
                else:
                    await self._take(link, answered)
        except (TimeoutError, OSError, SwarmError) as error:
            _log.debug("no path to %s: %s", link.peer.short, error)
        return [candidate.kind for candidate in refused]

    async def _ask(
        self, link: Link, candidate: PathCandidate, stagger: AttemptStagger | None = None
    ) -> _Answered:
        """Ask the peer by one candidate to go on there; `stagger`: of the other candidates."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        number = link.paths.numbers.take()
        asked = Resume.make(RESUME, link.session.exporter, number, self._entropy(NONCE_BYTES))
        connection = await candidate.connect()
        if stagger is not None:
            stagger.on_connection(loop.time() - begun_s, loop.time())
        try:
            await connection.send(asked.raw)
            answer = await connection.receive(RESUME_ANSWER_BYTES)
            asked.read_answer(link.session.exporter, answer)
        except BaseException:
            connection.close()
            raise
        return _Answered(connection, candidate, asked, answer)

    async def _take(self, link: Link, answered: _Answered) -> None:
        """Go on over a connection on which the peer has answered."""
        connection, asked = answered.connection, answered.asked
        exporter = link.session.exporter
        nonce, wanted = asked.read_answer(exporter, answered.answer)
        announced = link.records.expected
        path = Path(answered.candidate.kind, connection.remote, answered.candidate)
        try:
            await connection.send(asked.confirm(exporter, nonce, announced))
            takeover = Takeover(asked.number, announced, wanted)
            await connection.become_control(ControlPath(link, path, takeover))
        except BaseException:
            connection.close()
            raise
        if link.path is not path:
            raise LinkLost(f"another path to {link.peer.short} came up first")
        if isinstance(answered.candidate, ClaimedCandidate):
            answered.candidate.confirm()
        self.climb(link)


def _needs_path(link: Link, doubted: Path | None) -> bool:
    """Return whether a link has no path, or still the doubted one, and nothing came on it."""
    if link.over or link.path is None:
        return not link.over
    return link.path is doubted and link.doubted


async def _brings_something(link: Link, doubted: Path) -> bool:
    """Return whether a doubted path brings something, now that the peer has answered elsewhere.

    A peer that stood still answers everywhere at once: nothing is wrong with the path then.
    """
    if _needs_path(link, doubted):
        await _until_another(link, doubted, asyncio.get_running_loop().time() + KEEP_S)
    return not _needs_path(link, doubted)


async def _until_another(link: Link, path: Path | None, at_s: float) -> None:
    """Wait until a link has another path than this one, or is over, or it is `at_s`."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(at_s):
            while link.path is path and not link.over:
                link.path_change.clear()
                await link.path_change.wait()
