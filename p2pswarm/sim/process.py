"""The processes that run on simulated hosts, what they say of themselves, and their calls."""

from collections.abc import Callable, Coroutine
from functools import cached_property, lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar

from p2pswarm.base.errors import (
    BadHandshake,
    BadMessage,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import (
    Card,
    CardBody,
    CardFlags,
    SignedCard,
    can_be_said,
    direct_address,
)
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.net.guard.connection_limits import HandlerLimits
from p2pswarm.net.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.net.rpc.framing import (
    OPENING_BYTES,
    Kind,
    error_for_caller,
    error_of,
    failure_of,
    fits,
    reset_error,
    status_of,
)
from p2pswarm.net.rpc.handler_pool import HandlerPool, HandlerRequest
from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.sim.link import DEAD_AFTER_S, WORLD, SimClock, SimLink, Suspension
from p2pswarm.sim.message_watch import Moment, message_in
from p2pswarm.sim.network_conditions import Host, Place, World, WorldConfig

CARDS_READ = 16_384  # more than a large simulation has peers
NO_SIGNATURE = bytes(SIGNATURE_BYTES)


def unsigned(peer: PeerId, *places: Contact, seq: int = 0) -> bytes:
    """A card of a peer that names these places; of a client, if there are none to name.

    They have the form and about the size of real ones; where the key stands, there is the peer's
    id. So a simulated liar may name peers of which nobody has a key, which a real one cannot.

    Source: docs/addresses.md.
    """
    direct = [direct_address(each.address) for each in places if can_be_said(each.address)]
    flags = CardFlags.NONE if direct else CardFlags.CLIENT
    return encode(
        SignedCard(encode(CardBody(peer.raw, seq, tuple(direct), (), flags)), NO_SIGNATURE)
    )


@lru_cache(maxsize=CARDS_READ)
def read_unsigned(data: bytes) -> Card:
    """The card in bytes, whoever made them; BadMessage if they are none."""
    signed = decode(data)
    body = decode(signed.body) if isinstance(signed, SignedCard) else signed
    if not isinstance(signed, SignedCard) or not isinstance(body, CardBody):
        raise BadMessage(f"{type(body).__name__} is no card")
    return Card.of(PeerId(body.public_key), body, signed)


class UnsignedCards:
    """The cards of the peers of a world: implements `CardSource`, for all of them."""

    def __init__(self) -> None:
        self._said: dict[PeerId, tuple[Contact, ...]] = {}
        self._cards: dict[PeerId, Card] = {}

    def say(self, peer: PeerId, *places: Contact) -> None:
        """Let a peer say that it is at these places, or that it is a client if there are none."""
        self._said[peer] = places
        self._cards.pop(peer, None)

    def of(self, peer: PeerId) -> Card | None:
        """Return what a peer says of itself."""
        card = self._cards.get(peer)
        if card is None and peer in self._said:
            card = self._cards[peer] = read_unsigned(unsigned(peer, *self._said[peer]))
        return card

    read = staticmethod(read_unsigned)

    def learn(self, card: Card, heard_at: str) -> bool:
        """Nothing: everybody's card is known already."""
        del card, heard_at
        return False


MessageWatch = Callable[[type[Message], Moment, "SimProcess", Host], None]
"""Told of a message: its class, the moment, the process that it leaves or at which it arrives, and
the host of the other one. It may stop or end the process: then the message does not leave, or is
not read."""


class SimProcess:
    """The process that runs on one host.

    A process may end in two ways. After a power cut no peer is told: callers wait for their
    deadline, and the other end of a link gives it up after `DEAD_AFTER_S`. When only the process
    dies, its host's kernel tells all peers at once. A process may also be stopped for a while, and
    go on.
    """

    def __init__(self, population: "Population[Any]", host: Host) -> None:
        self.population = population
        self.world: World = population.world
        self.host = host
        self.contact = Contact(host.peer, host.address)
        self.running = True
        self.suspension = Suspension()
        """Its tasks run in the context of this."""
        self.lost: dict[object, Callable[[float], None]] = {}
        """The callbacks for this process's death; they get the seconds until others notice."""
        self._links: dict[int, tuple[SimProcess | None, float]] = {}
        """The process at the other end, by the index of its host, and since when the link is up."""
        self._dialled: dict[int, None] = {}
        """The hosts that have answered us, by index; the latest last."""

    @property
    def cards(self) -> UnsignedCards:
        """The cards of peers."""
        return self.population.cards

    @cached_property
    def clock(self) -> SimClock:
        """The event loop that runs the world; asked for first while it runs."""
        return self.population.clock()

    def reach(self, to: Contact) -> ProvenAddress:
        """Return what links would show of a peer's address: it comes from its host."""
        host = self.world.hosts.get(to.peer.raw) if to.peer is not None else None
        if host is None or host.address != to.address:
            return ProvenAddress.CLAIMED
        return ProvenAddress.DIALLED if host.index in self._dialled else ProvenAddress.HOST

    def note_dialled(self, target: Host) -> None:
        """Note that a host has answered us; the one that answered longest ago is forgotten."""
        self._dialled.pop(target.index, None)
        self._dialled[target.index] = None
        if len(self._dialled) > self.world.config.links_max:
            del self._dialled[next(iter(self._dialled))]

    def take(self, event: Callable[..., object], *args: Any) -> None:
        """Let the network tell this process something: now, or when it goes on."""
        if self.running:
            self.suspension.on_arrival(event, *args)

    def later(self, wait_s: float, event: Callable[..., object], *args: Any) -> None:
        """Let the network tell this process something after `wait_s`."""
        self.clock.call_later(wait_s, self.take, event, *args, context=WORLD)

    def sends(self, target: Host, args: tuple[Any, ...], send: Callable[[], object]) -> bool:
        """Return whether what `args` bring leaves now.

        A process that is stopped in the midst of its work calls `send` when it goes on.
        """
        self._watch(Moment.LEAVES, target, args)
        if self.running and self.suspension.stopped:
            self.suspension.wait(send)
            return False
        return self.running

    def receive(self, source: Host, event: Callable[..., object], *args: Any) -> None:
        """Let the network bring this process something from a host: now, or when it goes on."""
        self._watch(Moment.ARRIVES, source, args)
        self.take(event, *args)

    def _watch(self, moment: Moment, other: Host, args: tuple[Any, ...]) -> None:
        watch = self.population.on_message
        if watch is None or not self.running or self.suspension.stopped:
            return
        if (message := message_in(args)) is not None:
            watch(message, moment, self, other)

    def deliver(
        self, target: Host, size_bytes: int, event: Callable[..., None], *args: Any
    ) -> bool:
        """Call `event` when bytes of ours have come to `target`; False if they never will."""
        send = partial(self._deliver, target, size_bytes, event, *args)
        if self.sends(target, args, send):
            return send()
        return self.running

    def _deliver(
        self, target: Host, size_bytes: int, event: Callable[..., None], *args: Any
    ) -> bool:
        """As `deliver`, by the kernel."""
        if not self.running:
            return False
        link = self.population.link(self, target)
        if link is not None and not link.passes(self):
            link.hold(self, lambda: self._deliver(target, size_bytes, event, *args))
            return True
        clock = self.clock
        came_s = self.world.arrival_s(self.host, target, size_bytes, clock.time())
        if came_s is None:
            return False
        arrive = self.population.on_arrival
        clock.call_at(came_s, arrive, self.host, target, event, *args, context=WORLD)
        return True

    def dial_s(self, target: Host) -> float:
        """Seconds until a link to `target` is up; it is kept from now on."""
        if not self.world.config.dial_rtts:
            return 0.0
        now_s = self.clock.time()
        process = self.population.at(target)
        known, up_s = self._links.get(target.index, (None, 0.0))
        if known is None or known is not process:
            up_s = now_s + self.world.config.dial_rtts * 2 * self.way_s(target)
        self.note_link(target, process, up_s)
        return max(0.0, up_s - now_s)

    def note_link(self, other: Host, process: "SimProcess | None", up_s: float) -> None:
        """Keep a link that is up at `up_s`; the one used longest ago goes if there are too many."""
        self._links.pop(other.index, None)  # to the end of the dict: the newest
        self._links[other.index] = process, up_s
        if len(self._links) > self.world.config.links_max:
            del self._links[next(iter(self._links))]

    def way_s(self, other: Host) -> float:
        """Latency to another host."""
        return self.world.one_way_s(self.host, other)

    def stop(self, *, silent: bool) -> None:
        """End; the other ends of our links are told at once, or find out later."""
        self.running = False
        self.suspension.forget_arrivals()
        self.suspension.release()  # what was to run is cancelled, and has to run for that
        for tell in tuple(self.lost.values()):
            tell(DEAD_AFTER_S if silent else 0.0)
        self.lost.clear()


P = TypeVar("P", bound=SimProcess)


class Population(Generic[P]):
    """All processes of a world."""

    def __init__(
        self, seed: int, config: WorldConfig | None, clock: Callable[[], SimClock]
    ) -> None:
        """`clock` gives the event loop that runs the world, once it runs."""
        self.world = World(seed, config or WorldConfig(), self.watch)
        self.clock = clock
        self.cards = UnsignedCards()
        """The card of every peer: where its host is."""
        self.on_message: MessageWatch | None = None
        """Told of each message, if anybody wants to know."""
        self._running: dict[int, P] = {}
        self._links: dict[tuple[int, int], SimLink] = {}
        """The links that streams use, by the indices of their hosts."""

    def enter(self, peer: PeerId, at: Place | None, address: Address | None = None) -> Host:
        """The host of a new process: a new one, or the one it had."""
        host = self.world.hosts.get(peer.raw) or self.world.place(peer, at, address)
        if host.index in self._running:
            self.kill(peer, silent=False)
        for link in self.links_of(host):
            link.end_after(0.0)  # the new kernel knows nothing of it
        host.alive = True
        self.cards.say(peer, Contact(peer, host.address))
        return host

    def start(self, process: P) -> P:
        """Let a process run on its host from now on."""
        self._running[process.host.index] = process
        return process

    def kill(self, peer: PeerId, *, silent: bool = True) -> None:
        """End a process: as a power cut does if `silent`, else as SIGKILL does."""
        host = self.world.hosts[peer.raw]
        process = self._running.pop(host.index, None)
        host.alive = not silent
        if process is not None:
            process.stop(silent=silent)
            for link in self.links_of(host):
                link.on_death(process, silent=silent)

    def freeze(self, process: P) -> None:
        """Stop a process as SIGSTOP does: its kernel goes on."""
        process.suspension.stop()
        self.watch()

    def thaw(self, process: P) -> None:
        """Let a process go on; once for each time that it was stopped."""
        if process.suspension.stopped:
            process.suspension.go_on()
            self.watch()

    def watch(self) -> None:
        """Look at all links: something has changed."""
        for link in list(self._links.values()):
            link.watch()

    def reset(self, a: Host, b: Host) -> None:
        """End the link between two hosts that go on, as a router does that forgets it."""
        link = self._links.get(_pair(a, b))
        if link is not None:
            link.end_after(0.0)

    def link(self, process: SimProcess, target: Host) -> SimLink | None:
        """The link that is up between a process and the one on `target`, as it knows."""
        link = self._links.get(_pair(process.host, target)) if self._links else None
        return link if link is not None and process in link.ends else None

    def link_between(self, near: SimProcess, far: SimProcess) -> SimLink:
        """The link between two processes; it is made if there is none."""
        pair = _pair(near.host, far.host)
        link = self._links.get(pair)
        if link is None or near not in link.ends or far not in link.ends:

            def over() -> None:
                if self._links.get(pair) is made:
                    del self._links[pair]

            made = link = SimLink(self.world, self.clock(), (near, far), over)
            self._links[pair] = made
        return link

    def on_arrival(
        self, source: Host, target: Host, event: Callable[..., object], *args: Any
    ) -> None:
        """Bytes have come to a host: tell the process there, or the event that there is none."""
        process = self._running.get(target.index)
        if process is None:
            event(*args)
        else:
            process.receive(source, event, *args)

    def links_of(self, host: Host) -> list[SimLink]:
        """The links of the processes on a host."""
        return [link for pair, link in self._links.items() if host.index in pair]

    def find(self, to: Contact) -> tuple[Host | None, bool]:
        """The host at an address, and whether it is the peer that was meant."""
        if to.peer is not None:
            host = self.world.hosts.get(to.peer.raw)
            if host is not None and host.address == to.address:
                return host, True
        return self.world.at(to.address), to.peer is None

    def at(self, host: Host) -> P | None:
        """The process that runs on a host; None if none does."""
        return self._running.get(host.index)

    @property
    def digest(self) -> str:
        """Equal for two runs that sent the same bytes at the same times."""
        return self.world.digest


def _pair(a: Host, b: Host) -> tuple[int, int]:
    return (a.index, b.index) if a.index < b.index else (b.index, a.index)


M = TypeVar("M", bound=Message)

MESSAGE_BYTES = 200  # size of a message that is not encoded: a DHT call with its frame and tags


class ReplyWaiter(Protocol):
    """The waiter for the outcome of a call; a future is one."""

    def done(self) -> bool:
        """Return whether it has stopped waiting."""
        ...

    def set_result(self, result: Message, /) -> None:
        """The reply has come."""
        ...

    def set_exception(self, exception: SwarmError, /) -> None:
        """The call has failed."""
        ...


class SimPeer(SimProcess):
    """A process with its handlers of calls and streams."""

    def __init__(self, population: Population[Any], host: Host, limits: HandlerLimits) -> None:
        super().__init__(population, host)
        self.unary_handlers: dict[type[Message], UnaryHandler[Any]] = {}
        self.stream_handlers: dict[type[Message], StreamHandler[Any]] = {}
        self.pools = {kind: HandlerPool(limits) for kind in Kind}

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        self.unary_handlers[request] = handler

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        self.stream_handlers[opening] = handler

    def stop(self, *, silent: bool) -> None:
        """The process ends, and its handlers with it."""
        super().stop(silent=silent)
        for pool in self.pools.values():
            pool.stop()


class SimCall:
    """One call on its way: each method is an event of it.

    Messages pass as objects. They take the time that a real link would take, but not its processor
    time. A call costs two timers on the loop and a future.

    A dead host answers nothing, so its callers wait for their deadline. If only the process is dead
    (`silent=False`), its host's kernel refuses calls at once.
    """

    __slots__ = (
        "_caller",
        "_ended",
        "_link",
        "_replied",
        "_request_bytes",
        "_server",
        "_target",
        "_timeout_s",
        "task",
        "waiter",
    )

    def __init__(self, caller: SimPeer, waiter: ReplyWaiter, timeout_s: float) -> None:
        self.waiter = waiter
        self.task: Any = None
        """The task of the handler, once it has started."""
        self._caller = caller
        self._request_bytes = MESSAGE_BYTES
        self._timeout_s = timeout_s
        self._target: Host | None = None
        self._link: SimLink | None = None
        self._server: SimPeer | None = None
        self._ended = False
        self._replied = False

    def begin(self, to: Contact, request: Message) -> None:
        """At the caller: dial if there is no link, and send."""
        caller = self._caller
        target, meant = caller.population.find(to)
        request, self._request_bytes = self._carried(request)
        if not caller.running or target is None:
            return  # no host has that address, or we are dead ourselves
        if not meant:
            error = BadHandshake(f"{to.address} is not {to.peer}")
            caller.later(2 * caller.way_s(target), self.settle, error)
        elif (link := caller.population.link(caller, target)) is not None:
            self._link = link
            link.join(self, caller, self._lose_link)
            self._send(target, request)
        elif dial_s := caller.dial_s(target):
            caller.clock.call_later(dial_s, self._send, target, request)
        else:
            self._send(target, request)

    def _send(self, target: Host, request: Message) -> None:
        if not self._ended:
            self._target = target
            self._caller.deliver(target, self._request_bytes, self._arrive, request)

    def _carried(self, m: Message) -> tuple[Message, int]:
        """A message as the other side gets it, and its size in bytes."""
        if not self._caller.world.config.through_codec:
            return m, MESSAGE_BYTES
        body = encode(m)
        fits(body, OPENING_BYTES)  # or it may be long: a socket would carry it
        return decode(body), len(body)

    def _arrive(self, request: Message) -> None:
        """At the server: answer at once, or start a handler."""
        caller, target = self._caller, self._target
        assert target is not None
        server: SimPeer | None = caller.population.at(target)
        if server is None:
            if target.alive:
                error = DialFailed(f"nobody listens at {target.address}")
                caller.later(caller.way_s(target), self.settle, error)
            return
        if caller.world.config.dial_rtts:
            server.note_link(caller.host, caller, 0.0)
        self._server = server
        try:
            self._serve(server, request)
        except BadMessage as error:  # a plain function found the request malformed
            self.finish(LinkLost(f"{target.address} ended the link: {error}"))
        except Exception as error:  # noqa: BLE001  the caller gets it; logged if it is a bug
            self.finish(error_for_caller(error, request))

    def _serve(self, server: SimPeer, request: Message) -> None:
        handler = server.unary_handlers.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        peer = self._caller.host.peer
        outcome = handler(peer, request)
        if isinstance(outcome, Coroutine):
            order = HandlerRequest(peer, request, self._timeout_s, self._done)
            server.pools[Kind.UNARY].start(self, order, outcome)
            server.lost[self] = self._lose
            if self._link is not None:
                self._link.join((self, server), server, self._cancel)
        else:
            self.finish(outcome)

    def _done(self) -> None:
        assert self._server is not None
        self._server.lost.pop(self, None)
        if self._link is not None:
            self._link.leave((self, self._server))

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """At the server: the handler is done."""
        self._replied = True
        size_bytes = MESSAGE_BYTES
        assert self._server is not None
        if isinstance(outcome, SwarmError):
            outcome = error_of(status_of(outcome), failure_of(outcome))
        elif outcome is None:
            outcome = Refused("internal error")
        else:
            try:
                outcome, size_bytes = self._carried(outcome)
            except ValueError as error:  # a reply that cannot travel is a bug, as in `LinkRpc`
                outcome = error_for_caller(error, outcome)
        self._server.deliver(self._caller.host, size_bytes, self.settle, outcome)

    def give_up(self, code: int) -> None:
        """At the server: the handler was stopped."""
        self.finish(reset_error(code))

    def expire(self) -> None:
        """At the caller: the deadline has passed; a dead caller gets this too."""
        if not self.waiter.done():
            self.waiter.set_exception(Late("no reply by the deadline"))

    def settle(self, outcome: Message | SwarmError) -> None:
        """At the caller: the outcome has come."""
        if self.waiter.done() or not self._caller.running:
            return
        if isinstance(outcome, SwarmError):
            self.waiter.set_exception(outcome)
        else:
            if self._target is not None:
                self._caller.note_dialled(self._target)
            self.waiter.set_result(outcome)

    def _lose(self, wait_s: float) -> None:
        """The server's process died while its handler was running."""
        assert self._target is not None
        wait_s = max(wait_s, self._caller.way_s(self._target))
        error = LinkLost("the process at the other end is gone")
        self._caller.later(wait_s, self.settle, error)

    def _lose_link(self) -> None:
        """At the caller: the link has ended; a handler that runs learns it from its own end."""
        self.settle(LinkLost("the link was lost before the reply"))

    def end(self) -> None:
        """At the caller, after any outcome: stop a handler that still runs."""
        self._ended = True
        if self._link is not None:
            self._link.leave(self)
        if self._target is not None and not self._replied:
            self._caller.deliver(self._target, MESSAGE_BYTES, self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
