"""Dialler: makes links to peers that we dial, one dial to a contact at a time.

Errors:  DialFailed, BadHandshake; Busy if too many dials are under way.
Source:  RFC 8305.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from p2pswarm.base.errors import Busy, DialFailed, SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake
from p2pswarm.net.endpoint.dial_checks import check_attempts, dial_error, dial_failure
from p2pswarm.net.endpoint.handshaker import Handshaker
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.path import CandidateSource, PathCandidate, address_of
from p2pswarm.net.os.attempt_stagger import AttemptStagger, ConnectTimes
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.happy_eyeballs import AttemptFailed, first_connected

_log = logging.getLogger(__name__)


class Dialler:
    """The dials under way.

    All who ask for the same contact wait for one dial. A dial also ends when the peer dials us
    first.

    A peer may have several path candidates. They are tried beside each other, a quarter of a
    second apart, or more where one has shown that its peer is far (`net/os/attempt_stagger.py`).
    The first on which the peer has proven its identity wins, and only there do we prove ours. So
    the peer sees one link, and connections that came to nothing. Somebody else at the end of a
    candidate, or nobody, costs that candidate alone.
    """

    def __init__(
        self,
        paths: CandidateSource,
        config: TransportConfig,
        handshaker: Handshaker,
        tasks: OwnedTasks,
        make_link: Callable[[Connection, Handshake, PathCandidate], Awaitable[Link]],
    ) -> None:
        """`make_link`: makes a link by a candidate that we took; returns the link to use."""
        self._paths = paths
        self._config = config
        self._handshaker = handshaker
        self._tasks = tasks
        self._make_link = make_link
        self._dials: dict[Contact, asyncio.Future[Link]] = {}
        self._attempts = 0
        self._times = ConnectTimes()

    async def link(self, to: Contact) -> Link:
        """A new link to the contact, or one that comes up meanwhile."""
        dialling = self._dials.get(to)
        if dialling is None or _past(dialling):
            if (dials := len(self._dials)) >= self._config.dials_max:
                raise Busy(f"{dials} dials are under way", self._config.dial_s)
            dialling = asyncio.get_running_loop().create_future()
            dialling.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dials[to] = dialling
            self._tasks.spawn(self._dial(to, dialling), partial(self._end, to, dialling))
        return await asyncio.shield(dialling)

    def on_link(self, link: Link) -> None:
        """Give a link to the dials that wait for its peer."""
        for to, dialling in list(self._dials.items()):
            if to.peer == link.peer and not dialling.done():
                dialling.set_result(link)

    async def _dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        try:
            link = await self._first_link(to)
            if not dialling.done():
                dialling.set_result(link)
        except SwarmError as error:
            if not dialling.done():
                dialling.set_exception(error)
        except Exception as error:  # noqa: BLE001  callers would else see a cancellation
            _log.error("the dial of %s failed", to.address, exc_info=error)
            if not dialling.done():
                dialling.set_exception(DialFailed(f"{to.address}: internal error: {error!r}"))

    async def _first_link(self, to: Contact) -> Link:
        """The link by the first candidate on which the peer has proven who it is."""
        failures: list[SwarmError] = []
        proven = asyncio.Lock()

        async def attempt(candidate: PathCandidate) -> Link:
            first = candidate is candidates[0]
            try:
                check_attempts(self._attempts, self._config, first=first)
                self._attempts += 1
                try:
                    return await self._by(candidate, to, proven, stagger)
                finally:
                    self._attempts -= 1
            except SwarmError as error:
                failures.append(error)
                raise AttemptFailed(str(error)) from error

        candidates = self._paths.candidates(to)
        first_address = address_of(candidates[0]) if candidates else None
        stagger = AttemptStagger(self._times.of(str(first_address)) if first_address else 0.0)
        try:
            return await first_connected(candidates, attempt, stagger)
        except OSError:
            failed = dial_failure(to, failures)
            raise failed from failed.__cause__

    async def _by(
        self, candidate: PathCandidate, to: Contact, proven: asyncio.Lock, stagger: AttemptStagger
    ) -> Link:
        """The link by one candidate. `proven` is held by whoever has shown the peer who we are."""
        connection = None
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        ours = False

        async def before_proof() -> None:
            nonlocal ours
            ours = await proven.acquire()

        try:
            async with asyncio.timeout(self._config.dial_s):
                connection = await candidate.connect()
            stagger.on_connection(loop.time() - begun_s, loop.time())
            self._times.note(str(address_of(candidate)), loop.time() - begun_s)
            async with asyncio.timeout(self._config.handshake_s):
                handshake = await self._handshaker.dialled(connection, to.peer, before_proof)
                return await self._make_link(connection, handshake, candidate)
        except BaseException as error:
            if ours:
                proven.release()  # the other candidates go on
            if not isinstance(error, SwarmError | TimeoutError):
                raise
            at = address_of(candidate) or to.address
            known = dial_error(error, at, self._config, connected=connection is not None)
            if known is error:
                raise
            raise known from error
        finally:
            if connection is not None:
                connection.close()

    def _end(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        if self._dials.get(to) is dialling:
            del self._dials[to]
        dialling.cancel()  # this has an effect only while the endpoint closes


def _past(dialling: asyncio.Future[Link]) -> bool:
    """Return whether a dial was answered with the peer's own link, which has ended since.

    Such a dial may hang for seconds more, where the peer cannot be dialled.
    """
    given = dialling.done() and not dialling.cancelled() and dialling.exception() is None
    return given and dialling.result().over
