"""The lab as a value: an internet, hosts that stand in it, and hosts behind routers.

The internet is the WAN lab's: its emulator carries packets between the hosts that have a public
address, with a delay if one is asked for. A site is a host with what its profile puts before it.
Routers are namespaces with rules of nftables, so that the kernel itself maps ports and lets
packets in, or not.

Behind every router a host has the same address, 192.168.1.10. Homes are like that: who dials
a private address that a stranger names meets himself.

Public addresses are taken from 11.0.0.0/8 and 3ffe::/16, because programs treat the blocks that are
reserved for tests unlike those of the internet. No packet leaves the lab.

Units:   seconds.
Errors:  LabUnavailable where the machine does not allow a lab; ValueError for an unknown profile.
Source:  RFC 6598 for the provider's network; the nft_init.sh of miniupnpd for how it is called.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from wanlab.lab import Lab, LabUnavailable, Place
from wanlab.link import Link

from .profiles import PROFILES, WAN_ADDRESS, Profile

__all__ = ["LabUnavailable", "NatLab", "Site"]

PUBLIC = 4  # a bootstrap node, and observers in three other networks
PROBE = (sys.executable, "-I", str(Path(__file__).with_name("probe.py")))
HOME = ("192.168.1.1", "192.168.1.10", 24)
SECOND = "192.168.1.11"
PROVIDER = ("100.64.0.1", "100.64.0.2", 10)
"""Two ends of a network behind a router: the router, who is behind it, and the prefix."""

MINIUPNPD = """
ext_ifname=wan0
listening_ip=lan0
enable_upnp=yes
enable_natpmp=yes
secure_mode=yes
uuid=6c0f2a7e-52f1-4f0e-9f39-6a7d4b1c9e11
upnp_table_name=filter
upnp_nat_table_name=filter
"""
"""Secure mode: a host maps ports to itself alone. By natpmp, PCP is meant, too."""
NO_FILE = "/proc/none/miniupnpd.pid"
"""Where no file can be made: miniupnpd goes on without one, and several may run."""


@dataclass(frozen=True, slots=True)
class Site:
    """A host and what stands before it."""

    profile: Profile
    host: int
    """Its number in the lab, for `run` and `popen`."""
    routers: tuple[int, ...]
    """From the internet inwards."""
    address: str
    """The host's own."""
    wan_address: str
    """What stands for it on the internet: of the outermost router, or its own if that is routed."""
    second: bool = False
    """It stands behind the router that another site has brought."""


class NatLab(Lab):
    """Public hosts 0 .. public - 1, and `sites`, one for each profile given. A context manager."""

    kind = "NAT lab"

    def __init__(
        self,
        profiles: Sequence[str],
        *,
        public: int = PUBLIC,
        delay_s: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`profiles`: names, which may repeat; `delay_s`: one way across the internet."""
        unknown = [name for name in profiles if name not in PROFILES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no profile: there are {', '.join(PROFILES)}")
        self.public = public
        self.sites: tuple[Site, ...] = ()
        before = [profiles[:i].count(name) for i, name in enumerate(profiles)]
        second = [
            PROFILES[name].shared and n % 2 == 1 for name, n in zip(profiles, before, strict=True)
        ]
        inner = wan_hosts = public + second.count(False)
        places = [_public_place(i) for i in range(public)]
        for name, joins in zip(profiles, second, strict=True):
            if joins:
                first = next(s for s in reversed(self.sites) if s.profile.name == name)
                self.sites += (replace(first, host=inner, address=SECOND, second=True),)
                inner += 1
                continue
            wan_host = len(places)
            site = _site(PROFILES[name], wan_host, inner)
            inner += len(site.routers)  # the first router is no inner one, but its host is
            self.sites += (site,)
            places.append(_place(site, wan_host))
        link = Link(rate_bits_per_s=None, delay_s=delay_s)
        super().__init__(wan_hosts, link, seed=seed, places=places, inner=inner - wan_hosts)

    def __enter__(self) -> Self:
        self._nft = _command("nft", "nftables")
        if any(site.profile.port_mapping for site in self.sites):
            self._miniupnpd = _command("miniupnpd", "miniupnpd-nftables")
        super().__enter__()
        try:
            for host in range(self.hosts):
                self._ip(host, "route add 0.0.0.0/0 dev wan0", "route add ::/0 dev wan0")
            for site in self.sites:
                if site.routers:
                    self._connect(site)
        except BaseException:
            self.close()
            raise
        return self

    def describe(self) -> str:
        """What this lab is, for people and for logs."""
        lines = [f"host {i}: {self.address(i)}, {self.address6(i)}" for i in range(self.public)]
        for site in self.sites:
            before = "".join(f", router {number}" for number in site.routers)
            lines.append(
                f"host {site.host}: {site.address}{before}, on the internet {site.wan_address}"
                f" ({site.profile.name}: {site.profile.about})"
            )
        lines += [f"links: {self.link(0, 1)}"] if self.hosts > 1 else []
        return "\n".join(lines)

    def _connect(self, site: Site) -> None:
        """Lay the cables of a site, from the internet inwards, and put its rules in force."""
        if site.second:
            self._plug(
                site.routers[-1], "lan2", site.host, "eth0", (HOME[0], site.address, HOME[2])
            )
            return
        outer_ends = (HOME,) if len(site.routers) == 1 else (PROVIDER, HOME)
        if site.profile.ipv6:
            outer_ends = ((_lan6(site.wan_address, 1), site.address, 64),)
        boxes = (*site.routers, site.host)
        for i, (router, ends) in enumerate(zip(site.routers, outer_ends, strict=True)):
            self._forward(router)
            inner_device = "eth0" if boxes[i + 1] == site.host else "wan0"
            self._switch(router, ends)
            self._plug(router, "lan1", boxes[i + 1], inner_device, ends)
            own = site.wan_address if i == 0 else outer_ends[i - 1][1]
            self._rules(router, site.profile, site.profile.rules[i].replace(WAN_ADDRESS, own))
        if site.profile.port_mapping:
            self._start_port_mapping(site)

    def _switch(self, router: int, ends: tuple[str, str, int]) -> None:
        """Give a router `lan0`, into which those behind it are plugged."""
        near, _, prefix = ends
        nodad = " nodad" if ":" in near else ""
        self._ip(
            router,
            "link add lan0 type bridge",
            f"addr add {near}/{prefix} dev lan0{nodad}",
            "link set lan0 up",
        )

    def _plug(
        self, router: int, port: str, inner: int, device: str, ends: tuple[str, str, int]
    ) -> None:
        """Join a port of a router's `lan0` to a device of who is behind it; all is routed there."""
        near, far, prefix = ends
        nodad = " nodad" if ":" in near else ""
        self._ip(
            router,
            f"link add {port} type veth peer name {device} netns {self.namespace(inner)}",
            f"link set {port} master lan0 up",
        )
        self._ip(
            inner,
            f"addr add {far}/{prefix} dev {device}{nodad}",
            f"link set {device} up",
            f"route add {_anywhere(near)} via {near}",
        )

    def _forward(self, router: int) -> None:
        """Let a host forward packets."""
        script = "echo 1 > net/ipv4/ip_forward; echo 1 > net/ipv6/conf/all/forwarding"
        self.run(router, ["sh", "-ec", script], cwd="/proc/sys", check=True)

    def _rules(self, router: int, profile: Profile, rules: str) -> None:
        done = self.run(router, [self._nft, "-f", "-"], input=rules, capture_output=True, text=True)
        if done.returncode:
            problem = done.stderr.strip().splitlines()[0]
            raise LabUnavailable(f"no NAT lab: nft refuses the rules of {profile.name}: {problem}")

    def _start_port_mapping(self, site: Site) -> None:
        """Start miniupnpd in the router next to the host, and wait until it answers."""
        daemon = self.popen(
            site.routers[-1],
            [self._miniupnpd, "-d", "-f", "/dev/stdin", "-P", NO_FILE],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert daemon.stdin is not None
        with daemon.stdin as settings:
            settings.write(MINIUPNPD)
        order = json.dumps({"do": "gateway", "gateway": HOME[0]})
        asked = self.run(site.host, PROBE, input=order, capture_output=True, text=True, check=True)
        if json.loads(asked.stdout) != [0, site.wan_address]:
            raise LabUnavailable(f"no NAT lab: miniupnpd does not answer: {asked.stdout.strip()}")

    def _ip(self, host: int, *lines: str) -> None:
        done = self.run(
            host,
            ["ip", "-batch", "-"],
            input="\n".join(lines),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise LabUnavailable(f"no NAT lab: ip refuses {lines}: {done.stderr.strip()}")


def _command(name: str, package: str) -> str:
    """Where a command is; users other than root often have no sbin in their PATH."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if path is None:
        raise LabUnavailable(f"no NAT lab: the command {name} is missing: apt install {package}")
    return path


def _public_place(i: int) -> Place:
    return Place((f"11.{i + 1}.0.1/32", f"3ffe:{i + 1}::1/128"))


def _site(profile: Profile, wan_host: int, inner: int) -> Site:
    """The site whose end on the internet is `wan_host`; `inner`: the first number that is free."""
    own = _public_place(wan_host).own
    wan4, wan6 = (text.partition("/")[0] for text in own)
    if not profile.rules:
        return Site(profile, wan_host, (), wan4, wan4)
    routers = (wan_host, *range(inner, inner + len(profile.rules) - 1))
    host = inner + len(profile.rules) - 1
    if profile.ipv6:
        address = _lan6(wan6, 0x10)
        return Site(profile, host, routers, address, address)
    return Site(profile, host, routers, HOME[1], wan4)


def _place(site: Site, wan_host: int) -> Place:
    """Where the end of a site on the internet is; a router of IPv6 leads to its host."""
    return Place(_public_place(wan_host).own, (site.address,) if site.profile.ipv6 else ())


def _lan6(wan6: str, last: int) -> str:
    """An address in the network behind the router that has, or leads to, `wan6`."""
    return f"{':'.join(wan6.split(':')[:2])}:1::{last:x}"


def _anywhere(address: str) -> str:
    """All addresses of the family of this one."""
    return "::/0" if ":" in address else "0.0.0.0/0"
