"""Calls and handlers of a run, for those whom its owner lets: implements `Rpc` on top of another.

Units:   seconds; `clock` gives those since 1970.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from p2pswarm.base.errors import (
    BadMessage,
    NotAdmitted,
    NotServing,
    PathError,
    RunEnded,
    SwarmError,
)
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.rpc.base import ForwardingRpc, M, Rpc, Stream, StreamHandler, UnaryHandler
from p2pswarm.net.rpc.stream import within
from p2pswarm.net.wire.message import Message
from p2pswarm.run.access.access_list import Acquaintances
from p2pswarm.run.access.gate import REVOKED, AccessGate
from p2pswarm.run.access.grant import ANY, Access, day
from p2pswarm.run.access.messages import (
    AccessKnown,
    AccessList,
    ShowToken,
    TellAccess,
    TokenShown,
)

log = logging.getLogger(__name__)

SHOW_S = 5.0  # for a member to answer; a dial is a part of it
TOLD_AT_ONCE = 32  # members that are told of a list at the same time
LOOK_S = 60.0  # a clock that jumps is noticed so soon
MEMBER = Access.SERVE | Access.TRAIN


@dataclass(frozen=True, slots=True)
class RoleRules:
    """Which roles a message needs."""

    asked_by: Mapping[type[Message], Access] = field(default_factory=dict)
    """The roles of which its sender needs one; none at all: everybody may send it."""
    asked_of: Mapping[type[Message], Access] = field(default_factory=dict)
    """The roles of which its receiver needs one."""
    others: Access = MEMBER
    """The roles for a message that is not named, both ways."""

    def sender(self, asked: type[Message]) -> Access:
        """Return the roles of which the sender of a message needs one."""
        return self.asked_by.get(asked, self.others)

    def receiver(self, asked: type[Message]) -> Access:
        """Return the roles of which the receiver of a message needs one."""
        return self.asked_of.get(asked, self.others)


class GuardedRpc(ForwardingRpc, Closing):
    """The calls of one run. Use it in an `async with`; its end leaves the run.

    Before the first call to a peer that needs a role of either, both show their tokens. Every
    handler that is registered here first asks the gate whether its caller may. A stream ends when
    its peer is no member any more.
    """

    def __init__(
        self,
        rpc: Rpc,
        gate: AccessGate,
        rules: RoleRules,
        clock: Callable[[], float],
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        """`say` is told what this node's user should know."""
        super().__init__(rpc)
        self.gate = gate
        self.on_list: Callable[[AccessList], None] = lambda _access: None
        """Called with each newer access list."""
        self._rules = rules
        self._clock = clock
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._known = Acquaintances()
        self._showing: dict[bytes, asyncio.Lock] = {}
        self._streams: dict[bytes, dict[asyncio.Timeout, None]] = {}
        self._telling = asyncio.Semaphore(TOLD_AT_ONCE)
        self._tasks = OwnedTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._out = asyncio.Event()
        self._closed = False
        rpc.serve_unary(ShowToken, self._on_shown)
        rpc.serve_unary(TellAccess, self._on_told)

    async def __aenter__(self) -> Self:
        self._due()
        return self

    async def close(self) -> None:
        """Leave the run; the handlers stay registered until another run has its own."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """As `Rpc.call`; a peer that has forgotten our token is shown it again."""
        due_s = self._loop.time() + timeout_s
        await self.meet(to, type(request), timeout_s)
        try:
            with self._forgetting(to):
                return await self._rpc.call(to, request, due_s - self._loop.time())
        except NotAdmitted:
            await self.meet(to, type(request), due_s - self._loop.time())
        with self._forgetting(to):
            return await self._rpc.call(to, request, due_s - self._loop.time())

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[Stream]:
        """As `Rpc.open_stream`."""
        due_s = None if timeout_s is None else self._loop.time() + timeout_s
        await self.meet(to, type(opening), timeout_s)
        left_s = None if due_s is None else due_s - self._loop.time()
        try:
            with self._forgetting(to):
                async with (
                    self._held(_peer(to)),
                    self._rpc.open_stream(to, opening, left_s) as stream,
                ):
                    yield stream
        except NotAdmitted:
            self._check_own()
            raise

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """As `Rpc.serve_unary`, for members."""

        def guarded(peer: PeerId, asked: M) -> Coroutine[Any, Any, Message] | Message:
            self._check(peer, request)
            return handler(peer, asked)

        self._rpc.serve_unary(request, guarded)

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """As `Rpc.serve_stream`, for members; it ends when its peer is none any more."""

        async def guarded(stream: Stream, asked: M) -> None:
            self._check(stream.peer, opening)
            async with self._held(stream.peer.raw):
                await handler(stream, asked)

        self._rpc.serve_stream(opening, guarded)

    def learn(self, access: AccessList) -> None:
        """Go by a newer access list, and tell the others; BadMessage if it is not the owner's."""
        if not self.gate.learn(access, self._clock()):
            return
        log.info("access list %d", access.version)
        self.on_list(access)
        behind = self._known.behind(access.version)  # also who is barred by it: it should know
        self._bar()
        for contact in behind:
            self._tasks.spawn(self._tell(contact, access))

    async def until_out(self) -> str:
        """Wait until we are no member any more; returns why."""
        await self._out.wait()
        return self.gate.own_refusal(self._clock())

    def _check(self, peer: PeerId, asked: type[Message]) -> None:
        """Raise NotAdmitted unless a peer may ask this."""
        if refusal := self.gate.refusal(peer.raw, self._rules.sender(asked), self._clock()):
            raise NotAdmitted(refusal)

    def _on_shown(self, peer: PeerId, shown: ShowToken) -> TokenShown:
        if self._closed or shown.run != self.gate.door.run:
            raise NotServing("not in this run now")
        refusal = self.gate.show(peer.raw, shown.token, self._clock())
        self._known.has(peer.raw, shown.version)
        access = self.gate.known.newest
        news = access if access is not None and access.version > shown.version else None
        if refusal == REVOKED:  # the proof, for one that the owner had invited: it ends by itself
            return TokenShown(None, refusal, self.gate.known.version, news)
        if refusal:
            return TokenShown(None, refusal, 0, None)
        return TokenShown(self.gate.token, refusal, self.gate.known.version, news)

    def _on_told(self, peer: PeerId, told: TellAccess) -> AccessKnown:
        if self._closed:
            raise NotServing("not in this run now")
        self.learn(told.access)
        self._known.has(peer.raw, told.access.version)
        return AccessKnown(self.gate.known.version)

    async def meet(self, to: Contact, asked: type[Message], timeout_s: float | None) -> None:
        """Be sure that a peer has taken our token, and may be asked; raises NotAdmitted if not."""
        needed = self._rules.receiver(asked)
        if not needed and not self._rules.sender(asked):
            return  # neither of us needs to be known
        self._check_own()
        peer = _peer(to)
        if not self._met(peer, needed):
            limit_s = SHOW_S if timeout_s is None else min(SHOW_S, timeout_s)
            lock = self._showing.setdefault(peer, asyncio.Lock())
            try:
                async with within(limit_s, f"token shown to {to.address}"), lock:
                    if not self._met(peer, needed):
                        await self._show(to, limit_s)
            finally:
                if not lock.locked():
                    self._showing.pop(peer, None)
        if refusal := self.gate.refusal(peer, needed, self._clock()):
            raise NotAdmitted(f"{to.address} may not be asked that: {refusal}")

    def _met(self, peer: bytes, needed: Access) -> bool:
        """Return whether a peer has shown enough, and was shown our token."""
        needed = needed if self.gate.door.open else ANY
        return self._known.shown(peer) and not self.gate.refusal(peer, needed, self._clock())

    async def _show(self, to: Contact, timeout_s: float) -> None:
        own, peer = self.gate.token, _peer(to)
        question = ShowToken(self.gate.door.run, own, self.gate.known.version)
        answer = await self._rpc.call(to, question, timeout_s)
        if not isinstance(answer, TokenShown):
            raise BadMessage(f"a {type(answer).__name__} for a TokenShown")
        if answer.access is not None:
            self.learn(answer.access)
        self._check_own()
        if answer.refusal:
            raise NotAdmitted(answer.refusal)
        refusal = self.gate.show(peer, answer.token, self._clock())
        if refusal:
            raise NotAdmitted(f"{to.address} is no member of this run: {refusal}")
        self._known.took(peer, to, answer.version)
        if (access := self.gate.known.newest) is not None and access.version > answer.version:
            self._tasks.spawn(self._tell(to, access))
        self._due()

    def _check_own(self) -> None:
        if refusal := self.gate.own_refusal(self._clock()):
            self._out.set()
            raise RunEnded(refusal)

    @asynccontextmanager
    async def _held(self, peer: bytes) -> AsyncIterator[None]:
        """A stream with a peer, which ends when the peer is no member any more."""
        scope = asyncio.timeout(None)
        scopes = self._streams.setdefault(peer, {})
        scopes[scope] = None
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise NotAdmitted(self.gate.refusal(peer, ANY, self._clock()) or REVOKED) from None
        finally:
            del scopes[scope]
            if not scopes:
                self._streams.pop(peer, None)

    @contextmanager
    def _forgetting(self, to: Contact) -> Iterator[None]:
        """A block after whose refusal, or lost link, the peer may have forgotten our token."""
        try:
            yield
        except (NotAdmitted, PathError):
            self._known.forget(_peer(to))
            raise

    def _bar(self) -> None:
        """End the streams of those that are no members any more; all of them, if we are none."""
        barred = self.gate.barred()
        if self.gate.own_refusal(self._clock()):
            self._out.set()
            barred = list(self._streams)
        for peer in barred:
            log.info("%s is no member of the run any more", PeerId(peer).short)
            self._known.drop(peer)
            for scope in self._streams.get(peer, ()):
                if not scope.expired():
                    scope.reschedule(self._loop.time())

    def _due(self) -> None:
        """Look at the clocks: tokens expire, and somebody may have a newer list."""
        now_s, unix_s = self._loop.time(), self._clock()
        self.gate.on_deadline(unix_s)
        self._bar()
        if (until := self.gate.warning(unix_s)) is not None:
            self._say(
                f"this node's invitation is good until {day(until)}: ask the run's owner to renew "
                "it (p2pswarm renew)"
            )
        owned = bool(self.gate.door.owner)  # else there is no list that anybody could have
        if owned and (asked := self._known.to_ask(now_s, self.gate.members)) is not None:
            self._tasks.spawn(self._ask(asked))
        if self._timer is not None:
            self._timer.cancel()
        waits = [LOOK_S]
        if owned and (ask_s := self._known.next_deadline_s()) is not None:
            waits.append(ask_s - now_s)
        if (end_s := self.gate.next_deadline_s()) is not None:
            waits.append(end_s - unix_s + 1.0)
        self._timer = self._loop.call_later(max(0.1, min(waits)), self._due)

    async def _tell(self, to: Contact, access: AccessList) -> None:
        """Tell a member a newer list; one that is not reached asks for it later."""
        async with self._telling:
            try:
                answer = await self._rpc.call(to, TellAccess(access), SHOW_S)
            except SwarmError as error:
                log.info("%s was not told of access list %d: %s", to.address, access.version, error)
                return
        if isinstance(answer, AccessKnown):
            self._known.has(_peer(to), answer.version)

    async def _ask(self, to: Contact) -> None:
        """Ask a member for a newer list, by showing our token once more."""
        try:
            await self._show(to, SHOW_S)
        except SwarmError as error:
            log.info("%s was not asked for an access list: %s", to.address, error)


def _peer(to: Contact) -> bytes:
    assert to.peer is not None, "members know whom they call"
    return to.peer.raw
