"""Reachability: finds out whether others can dial this node, and keeps knowing it."""

import asyncio
import functools
import logging
from collections.abc import Callable
from ipaddress import ip_address

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address
from p2pswarm.base.loop_clock import now_s, wait_until
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.preface import KNOCK_NONCE_BYTES, token_of
from p2pswarm.net.os.interface_changes import watched
from p2pswarm.net.os.local_network import IPV6, families, family_of, gateway, own_host
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.reach.nat.dial_back import DialBack, DialledBack, DialOutcome, Observer, choose
from p2pswarm.reach.nat.mapping_search import Lease
from p2pswarm.reach.nat.port_mapping_io import PortMapper
from p2pswarm.reach.nat.reachability import AskPeers, Belief, Finding, ReachabilityBelief, State

CALL_S = 5.0  # the peer's dial takes 3 s at most
OUTSIDE_S = 3.0  # to call a peer that has just answered
KNOCK_S = 0.5  # a knock that the peer's answer has overtaken

log = logging.getLogger(__name__)


class Reachability:
    """The reachability of one node as it knows it; `run` keeps it true.

    It pumps one `ReachabilityBelief` for each address family that we listen on, and the
    `PortMapper`. While it runs, peers are asked, the router forwards a port, and changes of the
    machine's addresses are noticed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rpc: Rpc,
        bound: Address,
        entropy: Callable[[int], bytes],
        *,
        map_ports: bool,
    ) -> None:
        """`bound`: where we listen; `map_ports`: whether to ask the router for a port."""
        self.on_change: Callable[[Belief], None] = lambda _belief: None
        """Called with what is believed of all, when anything that is found out changes."""
        self.on_link: Callable[[Link], None] = lambda _link: None
        """Called with each link that comes up: they are needed here, too."""
        self._reported: tuple[list[Finding], bool] | None = None
        self.clocks_ms: dict[str, tuple[float, float]] = {}
        """The wall clock of each observer's host when it answered, and the loop's time then."""
        self._endpoint = endpoint
        self._rpc = rpc
        self._bound = bound
        self._entropy = entropy
        self.beliefs = {family: ReachabilityBelief(bound.port) for family in families(bound)}
        """By address family, `IPV4` and `IPV6`."""
        self.mappers = {
            family: PortMapper(bound.port, entropy, functools.partial(self._on_lease, family))
            for family in (self.beliefs if map_ports else ())
        }
        """By address family, those whose routers are asked to let others in."""
        self._knocks: dict[bytes, asyncio.Future[None]] = {}
        self._kernel_tells = True
        """True if the kernel tells of changes of our addresses; else we look when we ask peers."""
        self._news = asyncio.Event()
        self._known = asyncio.Event()
        """Set while the router and all peers have been asked that can be asked now."""

    async def run(self) -> None:
        """Run until cancelled."""
        self._endpoint.acceptor.on_knock = self._on_token
        self._endpoint.on_up = self._on_link
        with watched(self._look_at_interfaces) as tells:
            self._kernel_tells = tells
            self._look_at_interfaces()
            async with asyncio.TaskGroup() as tasks:
                for mapper in self.mappers.values():
                    tasks.create_task(mapper.run())
                while True:
                    self._news.clear()
                    for family, machine in self.beliefs.items():
                        self._drain(family, machine, tasks)
                    if self.settled and not any(b.busy(now_s()) for b in self.beliefs.values()):
                        self._known.set()
                    else:
                        self._known.clear()
                    report = [each.finding for each in self.beliefs.values()], self.settled
                    if report != self._reported:
                        self._reported = report
                        self.on_change(self.best())
                    deadlines = [each.next_deadline_s() for each in self.beliefs.values()]
                    due_s = min((each for each in deadlines if each is not None), default=None)
                    await wait_until(self._news, due_s)

    def best(self) -> Belief:
        """The belief that says most: that of a family in which others reach us, sure ones first."""
        states = list(State)
        return max(
            (machine.belief for machine in self.beliefs.values()),
            key=lambda each: (each.reachable != "no", each.sure, states.index(each.state)),
        )

    @property
    def settled(self) -> bool:
        """True if a router has been asked for a port, if that is wanted."""
        return all(mapper.settled for mapper in self.mappers.values())

    async def known(self) -> None:
        """Return when all that can be found out now has been: by the router, and by peers."""
        await self._known.wait()

    # told by others

    def _look_at_interfaces(self) -> None:
        for family, machine in self.beliefs.items():
            machine.on_interface(self._own_host(family), now_s())
        for family, mapper in self.mappers.items():
            own = self._own_host(family)
            if own is None or not _may_be_shut_out(own):
                own = None
            mapper.on_gateway(gateway(own) if own else None, own)
        self._news.set()

    def _own_host(self, family: int) -> str | None:
        """Our address in a family: the one we listen at, or that towards the Internet or a peer."""
        if not ip_address(self._bound.host.partition("%")[0]).is_unspecified:
            return self._bound.host
        remotes = [link.remote for link in self._endpoint.links()]
        peers = [remote.host for remote in remotes if _dialled_as_is(remote)]
        towards = [host for host in peers if family_of(host) == family]
        return own_host(family) or (own_host(family, towards[0]) if towards else None)

    def _on_lease(self, family: int, lease: Lease | None) -> None:
        external = None if lease is None else lease.external
        self.beliefs[family].on_lease(external, now_s())
        self._news.set()

    def _on_link(self, link: Link) -> None:
        self.on_link(link)
        family = family_of(link.remote.host)
        if family in self.beliefs and _dialled_as_is(link.remote):
            machine = self.beliefs[family]
            if machine.belief.state is State.ABSENT:  # without a route to the Internet, as in a lab
                machine.on_interface(self._own_host(family), now_s())
            machine.on_link(link.remote.host, now_s())
            self._news.set()

    def _on_token(self, token: bytes) -> None:
        waiter = self._knocks.get(token)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # pumping

    def _drain(self, family: int, machine: ReachabilityBelief, tasks: asyncio.TaskGroup) -> None:
        machine.on_deadline(now_s())
        for event in machine.drain():
            if isinstance(event, AskPeers):
                tasks.create_task(self._ask_peers(family, machine, event.ports))
                continue
            log.info("reachability: %s", event.belief)
            if event.belief.state is State.NATTED and family in self.mappers:
                self.mappers[family].on_doubt()

    # asking

    async def _ask_peers(
        self, family: int, machine: ReachabilityBelief, ports: tuple[int, ...]
    ) -> None:
        if not self._kernel_tells:
            self._look_at_interfaces()
        chosen = choose(self._observers(family), machine.asked_s)
        answered: list[bool] = []
        try:
            async with asyncio.TaskGroup() as tasks:
                for observer in chosen:
                    tasks.create_task(self._ask(machine, observer, ports, answered))
            if machine.asks_outside_port:
                async with asyncio.TaskGroup() as tasks:
                    for observer in [each for each in chosen if each.dialled]:
                        tasks.create_task(self._see_outside(machine, observer))
        finally:
            machine.on_round_end(len(chosen), len(answered), now_s())
            self._news.set()

    def _observers(self, family: int) -> list[Observer]:
        return [
            Observer(link.session.contact, link.remote.host, link.session.dialled)
            for link in self._endpoint.links()
            if _dialled_as_is(link.remote) and family_of(link.remote.host) == family
        ]

    async def _ask(
        self,
        machine: ReachabilityBelief,
        observer: Observer,
        ports: tuple[int, ...],
        answered: list[bool],
    ) -> None:
        """Have one peer dial our ports, one after another: it does one dial for us at a time."""
        for port in ports:
            nonce = self._entropy(KNOCK_NONCE_BYTES)
            knock: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._knocks[token_of(nonce)] = knock
            try:
                answer = await self._rpc.call(observer.contact, DialBack(port, nonce), CALL_S)
                if isinstance(answer, DialledBack):
                    await self._note(machine, observer, port, answer, knock)
                    answered.append(True)
            except SwarmError as error:
                log.info("%s does not dial us back: %s", observer.host, error)
            finally:
                del self._knocks[token_of(nonce)]

    async def _see_outside(self, machine: ReachabilityBelief, observer: Observer) -> None:
        """Call a peer from our listening port, and learn which port it sees."""
        try:
            async with asyncio.timeout(OUTSIDE_S):
                seen = await self._endpoint.outside(observer.contact.address)
        except (SwarmError, TimeoutError) as error:
            log.info("%s does not see our listening port: %s", observer.host, error)
        else:
            machine.on_outside_port(observer.host, seen, now_s())

    async def _note(
        self,
        machine: ReachabilityBelief,
        observer: Observer,
        port: int,
        answer: DialledBack,
        knock: "asyncio.Future[None]",
    ) -> None:
        self.clocks_ms[observer.host] = answer.clock_ms, now_s()
        try:
            at = Address(answer.host, port)
        except ValueError:
            return
        if family_of(at.host) != family_of(observer.host):
            return  # its link has gone on over the other family meanwhile, which asks for itself
        machine.on_observation(observer.host, at.host, now_s())
        if answer.outcome == DialOutcome.CONNECTED and not knock.done():
            await asyncio.wait([knock], timeout=KNOCK_S)
        if knock.done() or answer.outcome != DialOutcome.NOT_TRIED:
            machine.on_dial_back(observer.host, at, now_s(), arrived=knock.done())


def _may_be_shut_out(own: str) -> bool:
    """Return whether a router may be asked to translate an IPv4 address or open IPv6."""
    is_global = ip_address(own.partition("%")[0]).is_global
    return is_global if family_of(own) == IPV6 else not is_global


def _dialled_as_is(remote: Address) -> bool:
    """Return whether a host is the peer's own, and not that of a relay or a proxy for the web."""
    return not (remote.circuit or remote.web)
