"""SEAM 2 simulated: calls between thousands of nodes in one process, without crypto or mux.

Messages pass as objects; what a real link would do to them in time and order
is done, what it would do in cycles is not. A call costs two timers on the loop
and a future, so that 10,000 nodes can look each other up in seconds.

Where the real network differs for those who care:
* a dead host answers nothing, so its callers wait for their deadline; a dead
  process (`silent=False`) is refused or lost at once by its host's kernel;
* a link is made with the first call if `dial_rtts` says so, and is kept.

Units:   virtual seconds, bytes.
Errors:  as `rpc/base.py`.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from p2pswarm.errors import (
    BadHandshake,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Answer, Converse, Exchange
from p2pswarm.rpc.calls import Intake, error_of, failure_of, status_of
from p2pswarm.sim.exchange import converse
from p2pswarm.sim.world import Host, World, WorldConfig
from p2pswarm.wire.codec import Message, decode, encode

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)

MESSAGE_BYTES = 200  # charged where messages are not encoded: a DHT call with its frame and tags
CALLS_PER_PEER = 256  # as rpc/service.py
CALLS_TOTAL = 4096


class SimWorld:
    """The network of one simulated run, and the processes on its hosts."""

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        self.world = World(seed, config or WorldConfig())
        self._processes: dict[int, SimRpc] = {}

    def rpc(self, peer: PeerId, at: tuple[float, float] | None = None) -> "SimRpc":
        """Start a process of `peer`: on a new host, or again on the one it had."""
        host = self.world.hosts.get(peer.raw) or self.world.place(peer, at)
        if old := self._processes.get(host.index):
            old.stop()
        host.alive = True
        self._processes[host.index] = SimRpc(self, host)
        return self._processes[host.index]

    def kill(self, peer: PeerId, *, silent: bool = True) -> None:
        """End a process; `silent` as a power cut is, else as SIGKILL is on a living host."""
        host = self.world.hosts[peer.raw]
        process = self._processes.pop(host.index, None)
        host.alive = not silent
        if process:
            process.stop()

    def find(self, to: Contact) -> tuple[Host | None, bool]:
        """The host at an address, and whether it is the peer that was meant."""
        if to.peer is not None:
            host = self.world.hosts.get(to.peer.raw)
            if host is not None and host.address == to.address:
                return host, True
        return self.world.at(to.address), to.peer is None

    def process(self, host: Host) -> "SimRpc | None":
        """What runs there."""
        return self._processes.get(host.index)

    def deliver(
        self, source: Host, target: Host, size_bytes: int, event: Callable[..., None], *args: Any
    ) -> bool:
        """Call `event` when the bytes have come; False if they never will."""
        loop = asyncio.get_running_loop()
        came_s = self.world.arrival_s(source, target, size_bytes, loop.time())
        if came_s is None:
            return False
        loop.call_at(came_s, event, *args)
        return True

    def carried(self, m: Message) -> tuple[Message, int]:
        """A message as the other side sees it, and its bytes."""
        if not self.world.config.through_codec:
            return m, MESSAGE_BYTES
        body = encode(m)
        return decode(body), len(body)

    @property
    def digest(self) -> str:
        """Equal for two runs that sent the same bytes at the same times."""
        return self.world.digest


class SimRpc:
    """One simulated process: implements `Rpc`."""

    def __init__(self, net: SimWorld, host: Host) -> None:
        self.net = net
        self.host = host
        self.running = True
        self.answers: dict[type[Message], Answer[Any]] = {}
        self.attends: dict[type[Message], Converse[Any]] = {}
        self.intake = Intake(CALLS_PER_PEER, CALLS_TOTAL)
        self._contact = Contact(host.peer, host.address)
        self._links: dict[int, SimRpc | None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.lost: dict[object, Callable[[], None]] = {}
        """What to tell to others when this process dies."""

    @property
    def contact(self) -> Contact:
        """Where this process stands in the simulated world."""
        return self._contact

    def answer(self, request: type[M], handler: Answer[M]) -> None:
        """Serve calls of one message type."""
        self.answers[request] = handler

    def attend(self, opening: type[M], handler: Converse[M]) -> None:
        """Serve exchanges that open with one message type."""
        self.attends[opening] = handler

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once; see `Rpc`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Message] = loop.create_future()
        late = loop.call_later(timeout_s, _late, waiter, to, timeout_s)
        call = _Call(self, waiter, timeout_s)
        try:
            call.begin(to, request)
            return await waiter
        finally:
            late.cancel()
            call.end()

    def converse(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AbstractAsyncContextManager[Exchange]:
        """Open an exchange; see `Rpc`."""
        return converse(self, to, opening, timeout_s)

    def dial_s(self, target: Host) -> float:
        """Seconds until a link to `target` is up; it is kept from now on."""
        world = self.net.world
        if not world.config.dial_rtts:
            return 0.0
        linked = target.index in self._links
        process = self.net.process(target)
        linked = self._links.pop(target.index, None) is process and linked
        self.note_link(target.index, process)
        return 0.0 if linked else world.config.dial_rtts * 2 * world.one_way_s(self.host, target)

    def note_link(self, index: int, process: "SimRpc | None") -> None:
        """Keep a link to a process; the one used longest ago goes if there are too many."""
        self._links.pop(index, None)  # to the end of the dict: the newest
        self._links[index] = process
        if len(self._links) > self.net.world.config.links_max:
            del self._links[next(iter(self._links))]

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a handler in a task that dies with this process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def stop(self) -> None:
        """The process ends: its handlers stop, and those who talked with it are told or not."""
        self.running = False
        for task in tuple(self._tasks):
            task.cancel()
        if self.host.alive:
            for tell in tuple(self.lost.values()):
                tell()
        self.lost.clear()


class _Call:
    """One call on its way: what happens to it, event by event."""

    __slots__ = ("_caller", "_ended", "_replied", "_target", "_task", "_timeout_s", "_waiter")

    def __init__(self, caller: SimRpc, waiter: asyncio.Future[Message], timeout_s: float) -> None:
        self._caller = caller
        self._waiter = waiter
        self._timeout_s = timeout_s
        self._target: Host | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self._replied = False

    def begin(self, to: Contact, request: Message) -> None:
        """At the caller: dial if there is no link, and send."""
        caller = self._caller
        target, meant = caller.net.find(to)
        if not caller.running or target is None:
            return  # nobody is there to answer, or we are dead ourselves
        loop = asyncio.get_running_loop()
        if not meant:
            way_s = 2 * caller.net.world.one_way_s(caller.host, target)
            loop.call_later(way_s, self._settle, BadHandshake(f"{to.address} is not {to.peer}"))
        elif dial_s := caller.dial_s(target):
            loop.call_later(dial_s, self._send, target, request)
        else:
            self._send(target, request)

    def _send(self, target: Host, request: Message) -> None:
        if not self._ended:
            self._target = target
            net = self._caller.net
            request, size_bytes = net.carried(request)
            net.deliver(self._caller.host, target, size_bytes, self._arrive, request)

    def _arrive(self, request: Message) -> None:
        """At the server: answer at once, or start a handler."""
        assert self._target is not None
        server = self._caller.net.process(self._target)
        if not self._target.alive:
            return
        if server is None:
            self._reply(DialFailed(f"nobody listens at {self._target.address}"))
            return
        if self._caller.net.world.config.dial_rtts:
            server.note_link(self._caller.host.index, self._caller)
        peer = self._caller.host.peer
        try:
            server.intake.enter(peer)
        except Busy as busy:
            self._reply(busy)
            return
        try:
            outcome = self._serve(server, request)
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            outcome = _told(error, request)
        if outcome is not None:
            server.intake.leave(peer)
            self._reply(outcome)

    def _serve(self, server: SimRpc, request: Message) -> Message | None:
        """The reply, or None if a task is to make it."""
        handler = server.answers.get(type(request))
        if handler is None:
            raise NotServing(f"no {type(request).__name__} here")
        peer = self._caller.host.peer
        outcome = handler(peer, request)
        if isinstance(outcome, Message):
            return outcome
        server.lost[self] = self._lose
        self._task = server.start(self._run(outcome, request))
        late = asyncio.get_running_loop().call_later(self._timeout_s, self._task.cancel)

        def done(_: object) -> None:
            late.cancel()
            server.intake.leave(peer)
            server.lost.pop(self, None)

        self._task.add_done_callback(done)
        return None

    async def _run(self, work: Awaitable[Message], request: Message) -> None:
        try:
            reply: Message | SwarmError = await work
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            reply = _told(error, request)
        self._reply(reply)

    def _reply(self, outcome: Message | SwarmError) -> None:
        assert self._target is not None
        self._replied = True
        net = self._caller.net
        size_bytes = MESSAGE_BYTES
        if isinstance(outcome, Message):
            outcome, size_bytes = net.carried(outcome)
        net.deliver(self._target, self._caller.host, size_bytes, self._settle, outcome)

    def _settle(self, outcome: Message | SwarmError) -> None:
        """At the caller: it has come."""
        if self._waiter.done() or not self._caller.running:
            return
        if isinstance(outcome, SwarmError):
            self._waiter.set_exception(outcome)
        else:
            self._waiter.set_result(outcome)

    def _lose(self) -> None:
        """The server's process died and its host's kernel says so."""
        self._reply(LinkLost("the process at the other end is gone"))

    def end(self) -> None:
        """At the caller, whatever came of it: a handler that still runs is to stop."""
        self._ended = True
        if self._target is not None and not self._replied:
            net = self._caller.net
            net.deliver(self._caller.host, self._target, MESSAGE_BYTES, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _late(waiter: asyncio.Future[Message], to: Contact, timeout_s: float) -> None:
    if not waiter.done():
        waiter.set_exception(Late(f"no answer from {to.address} within {timeout_s:g} s"))


def _told(error: Exception, request: Message) -> SwarmError:
    """What the other side hears of an error in a handler."""
    if isinstance(error, SwarmError):
        return error_of(status_of(error), failure_of(error))
    log.error("the handler of %s failed", type(request).__name__, exc_info=error)
    return Refused("internal error")
