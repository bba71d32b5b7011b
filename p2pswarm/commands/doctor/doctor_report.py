"""Findings of `p2pswarm doctor`: lines for people, JSON for scripts, and advice."""

import json
import sys
from dataclasses import asdict, dataclass
from ipaddress import ip_address

from p2pswarm.net.config import TransportConfig
from p2pswarm.net.guard.bans import time_left
from p2pswarm.net.guard.file_budget import within_select
from p2pswarm.progress.printable import printable
from p2pswarm.reach.nat.announcement import ASSUMED
from p2pswarm.reach.nat.reachability import Belief, NatKind, State

SOCKET_BYTES_MIN = 16 * 2**20  # 1 Gbit/s over 100 ms has 12.5 MB under way
FILES_MIN = 4096  # 1,024 links, each with bulk connections
CLOCK_S_MAX = 2.0  # docs/dht.md: from 5 s on, records are refused
DISK_BYTES_MIN = 10 * 2**30  # weights and moments of a stage of 600 million parameters
SET_CLOCK = {
    "win32": "w32tm /resync",
    "darwin": "sudo sntp -sS time.apple.com",
}.get(sys.platform, "run chrony or ntpd")
GIB = 2**30
MIB = 2**20
PEERS_HERE = (
    "every peer that could be asked is on this machine, where a dial proves nothing: name a node "
    "on another one (--bootstrap HOST:PORT)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Findings in one address family."""

    name: str
    """IPv4 or IPv6."""
    own_host: str | None
    """This machine's address; None without one."""
    listening: bool
    """True if the node listens in it."""
    belief: Belief


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBan:
    """A peer that the trainer of a run has banned."""

    run: str
    peer: str
    """Its id, as people see it."""
    why: str
    """Its offence, in words that follow "it"."""
    left_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """All that was found."""

    port: int
    families: tuple[Family, ...]
    gateway: str | None
    """The IPv4 router, if one is known."""
    lease: str | None
    """The outside address that the router forwards."""
    protocol: str
    """By which it does; empty without a lease."""
    refusals: dict[str, str]
    """Reason why each protocol gave nothing, as far as the router has said."""
    relayed: str | None
    """Address at which a relay of the swarm passes this node on, while others cannot dial it."""
    asked_peers: int
    """Networks of peers that have tried to dial us."""
    seeds_failure: str
    """Reason why nobody could be asked; empty if somebody was, or nobody was named."""
    seeds_named: bool
    peers_here: bool
    """True if all peers that it met are on this machine, where a dial proves nothing."""
    clock_ahead_s: float | None
    """Of the peers' clocks, in the median; None if none has told."""
    bbr: bool
    congestion_control: str
    """The usual one; empty if the system does not tell."""
    send_memory_bytes: int | None
    receive_memory_bytes: int | None
    files: int
    watched_max: int | None
    """The sockets that the system lets a node watch at once; None without such a limit."""
    disk_free_bytes: int
    gpus: tuple[str, ...]
    driver: bool
    """True if the system has a driver of NVIDIA's."""
    banned_by: tuple[str, ...] = ()
    """Words of the peers that have banned this node's identity, a line each."""
    bans: tuple[RunBan, ...] = ()
    """Bans by the trainers of the swarm's runs."""

    @property
    def reachable(self) -> str:
        """Return how others reach the node."""
        return "relayed" if self.best.reachable == "no" and self.relayed else self.best.reachable

    @property
    def best(self) -> Belief:
        """The belief of the family in which others reach us, or else of the first one."""
        beliefs = [family.belief for family in self.families]
        return max(beliefs, key=lambda each: (each.reachable != "no", each.sure))


def as_json(found: Findings) -> str:
    """One line of JSON."""
    best = found.best
    beliefs = [family.belief for family in found.families]
    addresses = [str(each.address) for each in beliefs if each.reachable != "no"]
    if found.relayed and found.reachable == "relayed":
        addresses.append(found.relayed)
    return json.dumps(
        {
            "nat": best.kind.value,
            "reachable": found.reachable,
            "sure": best.sure,
            "addresses": addresses,
            "advice": advice(found),
            "found": {
                "port": found.port,
                "router": found.gateway,
                "lease": found.lease,
                "lease_protocol": found.protocol,
                "refusals": found.refusals,
                "networks_asked": found.asked_peers,
                "states": {each.name: each.belief.state.value for each in found.families},
                "own": {each.name: each.own_host for each in found.families},
                "clock_ahead_s": found.clock_ahead_s,
                "bbr": found.bbr,
                "congestion_control": found.congestion_control,
                "send_memory_bytes": found.send_memory_bytes,
                "receive_memory_bytes": found.receive_memory_bytes,
                "open_files": found.files,
                "watched_sockets": found.watched_max,
                "disk_free_bytes": found.disk_free_bytes,
                "gpus": list(found.gpus),
                "banned_by": list(found.banned_by),
                "bans": [asdict(ban) for ban in found.bans],
            },
        },
        separators=(",", ":"),
    )


def as_lines(found: Findings) -> list[str]:
    """Lines for people."""
    lines = [_reachable(found)]
    lines += [f"  {family.name}: {_family(family)}" for family in found.families]
    receive = _mib(found.receive_memory_bytes)
    lines += [
        f"  router: {_router(found)}",
        f"  congestion control: {'bbr' if found.bbr else found.congestion_control or 'unknown'}",
        f"  socket memory: {_mib(found.send_memory_bytes)} to send, {receive} to receive",
        f"  open files: {found.files:,}",
        *([] if found.watched_max is None else [_watched(found.watched_max)]),
        f"  clock: {_clock(found.clock_ahead_s)}",
        f"  disk: {found.disk_free_bytes / GIB:,.0f} GiB free",
        f"  GPU: {', '.join(found.gpus) or 'none'}",
    ]
    lines += [
        f"  {ban.peer} is banned by the trainer of run {ban.run!r} for another "
        f"{time_left(ban.left_s)}: it {ban.why}"
        for ban in found.bans
    ]
    to_change = advice(found)
    lines.append("to change:" if to_change else "nothing to change")
    return [printable(line) for line in (*lines, *(f"  * {each}" for each in to_change))]


def advice(found: Findings) -> list[str]:
    """Return what to change, the most important first; each line says what it is good for."""
    return [*found.banned_by, *_about_reaching(found), *_about_machine(found)]


def _about_reaching(found: Findings) -> list[str]:
    best = found.best
    if found.seeds_failure:
        return [f"nobody could be asked whether this node can be dialled: {found.seeds_failure}"]
    if best.state in (State.PROBING, State.ABSENT):
        if found.peers_here:
            return [PEERS_HERE]
        if found.seeds_named:
            return ["no peer has tried to dial this node: name another one, on another network"]
        return ["name a node of a swarm (--bootstrap HOST:PORT): then it can try to dial you"]
    said = [] if best.reachable != "no" else [_about_nat(found, best.kind)]
    if not best.sure:
        said.append("only one network of peers was asked: name another --bootstrap elsewhere")
    return said


def _about_nat(found: Findings, kind: NatKind) -> str:
    """Return how a node that others cannot dial becomes one that they can."""
    means = "until then other servers cannot send it work"
    if found.relayed:
        means = "until then its links begin at a relay, and stay there where punching fails"
    port = found.port
    if kind is NatKind.FIREWALL:
        where = "this machine's firewall and the provider's (security group)"
        return f"open TCP port {port} in {where}: {means}"
    if found.lease is None:
        own = next((each.own_host for each in found.families if each.own_host), "this machine")
        router = f"the router at {found.gateway}" if found.gateway else "your router"
        forward = f"have it forward TCP port {port} to {own}"
        return f"switch on UPnP, NAT-PMP or PCP in {router}, or {forward}: {means}"
    if ip_address(found.lease.rpartition(":")[0]).is_global:
        return f"the router forwards {found.lease}, and nobody gets through: look for a firewall"
    return (
        f"two routers in a row: yours forwards {found.lease}, which is no address of the Internet; "
        f"forward it on the other one too, or ask your provider for a public address: {means}"
    )


def _about_machine(found: Findings) -> list[str]:
    said: list[str] = []
    if not found.bbr and found.congestion_control:  # a system that says none lets none be chosen
        said.append(
            "allow the congestion control bbr (as root: modprobe tcp_bbr; sysctl -w "
            'net.ipv4.tcp_allowed_congestion_control="reno cubic bbr"): it keeps its rate where '
            "packets are lost"
        )
    sizes = {"tcp_wmem": found.send_memory_bytes, "tcp_rmem": found.receive_memory_bytes}
    said += [
        f'let sockets have 16 MiB (as root: sysctl -w net.ipv4.{name}="4096 131072 16777216"): '
        "less holds back far, fast links"
        for name, size_bytes in sizes.items()
        if size_bytes is not None and size_bytes < SOCKET_BYTES_MIN
    ]
    if found.files < FILES_MIN:
        said.append(
            f"allow {FILES_MIN:,} open files (ulimit -n {FILES_MIN}): fewer mean fewer links"
        )
    if found.clock_ahead_s is not None and abs(found.clock_ahead_s) > CLOCK_S_MAX:
        off = f"{abs(found.clock_ahead_s):.0f} s {_ahead_or_behind(found.clock_ahead_s)}"
        said.append(f"set the clock, it is {off} ({SET_CLOCK}): peers refuse records of then")
    if found.disk_free_bytes < DISK_BYTES_MIN:
        said.append("free some disk: a server keeps weights there, and writes checkpoints")
    if not found.gpus:
        there = "install torch for CUDA: the driver is there, and torch does not use it"
        none = "torch sees no GPU: this machine computes on its processor, many times slower"
        said.append(there if found.driver else none)
    return said


def _reachable(found: Findings) -> str:
    best = found.best
    assumed = "" if best.sure else ASSUMED
    if best.reachable != "no":
        return f"reachable: {best.reachable} at {best.address}{assumed}"
    if found.relayed:
        return f"reachable: relayed at {found.relayed} (NAT: {best.kind.value})"
    if best.state is State.NATTED:
        return f"reachable: no, others cannot dial this node{assumed} (NAT: {best.kind.value})"
    if found.peers_here:
        return "reachable: unknown, all peers are on this machine"
    return "reachable: unknown, nobody has tried to dial this node"


def _family(family: Family) -> str:
    if family.own_host is None:
        return "none"
    if not family.listening:
        return f"{family.own_host}, where the node does not listen"
    return f"{family.own_host}, {family.belief.state.value}"


def _router(found: Findings) -> str:
    if found.lease:
        return f"{found.gateway} forwards {found.lease} ({found.protocol})"
    if found.gateway is None:
        return "none known, or none between this machine and the Internet"
    why = "; ".join(found.refusals.values()) or "it knows neither PCP, NAT-PMP nor UPnP"
    return f"{found.gateway} forwards no port: {why}"


def _watched(sockets: int) -> str:
    links_max = within_select(TransportConfig(), sockets).links_max
    return f"  sockets: {sockets} at once on this system, so at most {links_max} peers"


def _clock(ahead_s: float | None) -> str:
    if ahead_s is None:
        return "not compared with anybody's"
    return f"{abs(ahead_s):.1f} s {_ahead_or_behind(ahead_s)}"


def _ahead_or_behind(ahead_s: float) -> str:
    return f"{'ahead of' if ahead_s > 0 else 'behind'} the peers' clocks"


def _mib(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / MIB:,.0f} MiB"
