"""The lab as a value: open it, run programs in its hosts, change its links, close it.

A program in a host is a plain child of ours (`nsenter` puts it there and
becomes it), so `subprocess` behaves as usual: signals, exit codes, pipes.

Units:   seconds, bytes.
Errors:  LabUnavailable where the machine does not allow a lab; ValueError for
         a host that is not there.
Source:  tcp(7) for the TCP settings; docs/figures.md, "WAN lab", for what they do.
"""

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .link import Link, LinkCounts

HOSTS_MAX = 32  # 992 links: their counts still fit in one datagram
MTU_BYTES = 1500  # Ethernet, and so nearly every road across the internet
NETWORK = ipaddress.IPv4Network("10.77.0.0/16")
NETWORK6 = ipaddress.IPv6Network("fd77::/64")
SETUP_S = 30.0  # for all hosts; one takes about 10 ms
GOODBYE_S = 5.0  # between SIGTERM and SIGKILL when the lab closes
MESSAGE_BYTES_MAX = 1 << 20
TESTS = Path(__file__).resolve().parent.parent


class LabUnavailable(RuntimeError):
    """This machine does not allow a lab; the text says why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcp:
    """TCP settings of every host. 200 Mbit/s at 100 ms keep 2.5 MB in flight."""

    congestion_control: str = "bbr"
    rmem_max_bytes: int = 32 << 20
    """A receiver of 32 MB is ahead of every link here; about half of it is usable window."""
    wmem_max_bytes: int = 4 << 20
    """Linux's usual default."""

    def sysctls(self) -> dict[str, str]:
        """Names and values. Metrics are not kept, so that every connection starts afresh."""
        return {
            "net.ipv4.tcp_congestion_control": self.congestion_control,
            "net.ipv4.tcp_rmem": f"4096 131072 {self.rmem_max_bytes}",
            "net.ipv4.tcp_wmem": f"4096 16384 {self.wmem_max_bytes}",
            "net.ipv4.tcp_no_metrics_save": "1",
        }


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host is."""

    own: tuple[str, ...]
    """The addresses of its `wan0`, as ADDRESS/PREFIX; the first IPv4 one is its name in the lab."""
    behind: tuple[str, ...] = ()
    """Addresses that it leads to, as a router does."""


class Lab:
    """Hosts 0 .. hosts - 1, every two joined by a link each way. A context manager."""

    kind = "WAN lab"

    def __init__(
        self,
        hosts: int,
        link: Link,
        *,
        tcp: Tcp | None = None,
        seed: int = 0,
        places: Sequence[Place] | None = None,
        inner: int = 0,
    ) -> None:
        """`places`: of each host; None: all in one network.

        `inner`: namespaces that no link leads to; they are numbered on from the hosts.
        """
        if not 1 <= hosts <= HOSTS_MAX:
            raise ValueError(f"a lab has 1..{HOSTS_MAX} hosts, not {hosts}")
        if places is None:
            places = [
                Place((f"{NETWORK[i + 1]}/16", f"{NETWORK6[i + 1]}/64")) for i in range(hosts)
            ]
        if len(places) != hosts:
            raise ValueError(f"{hosts} hosts have {hosts} places, not {len(places)}")
        self.hosts = hosts
        self._places = tuple(places)
        self._inner = inner
        self.tcp = tcp if tcp is not None else Tcp()
        self.real_time = False
        """Whether the emulator outruns busy processors; known once the lab is open."""
        self._links = {(i, j): link for i in range(hosts) for j in range(hosts) if i != j}
        self._first_link = link
        self._seed = seed
        self._programs: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()  # programs may be started from several threads
        self._namespace_fds: list[int] = []
        self._in_user_namespace = False
        self._control: socket.socket | None = None
        self._emulator: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        for command in ("ip", "nsenter"):
            if shutil.which(command) is None:
                raise LabUnavailable(f"no {self.kind}: the command {command} is missing")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(SETUP_S)
        with theirs:
            self._emulator = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    f"{__package__.rpartition('.')[2]}.emulator",
                    str(theirs.fileno()),
                ],
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            reply = self._ask(
                places=[asdict(place) for place in self._places],
                inner=self._inner,
                mtu_bytes=MTU_BYTES,
                sysctls=self.tcp.sysctls(),
                link=asdict(self._first_link),
                seed=self._seed,
            )
        except BaseException:
            self.close()
            raise
        self._namespace_fds = reply["namespace_fds"]
        self._in_user_namespace = reply["in_user_namespace"]
        self.real_time = reply["real_time"]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every program in the lab, then the lab. May be called twice."""
        for program in self._programs:
            if program.poll() is None:
                program.terminate()
        for program in self._programs:
            try:
                program.wait(GOODBYE_S)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        if self._control is not None:
            self._control.close()
        if self._emulator is not None:
            self._emulator.wait()

    def address(self, host: int) -> str:
        """The IPv4 address of a host."""
        return self._first_address(host, 4)

    def address6(self, host: int) -> str:
        """The IPv6 address of a host."""
        return self._first_address(host, 6)

    def namespace(self, host: int) -> Path:
        """The network namespace of a host, or of one of the inner ones."""
        assert self._emulator is not None, "the lab is open"
        fd = self._namespace_fds[self._checked(host, inner=True)]
        return Path(f"/proc/{self._emulator.pid}/fd/{fd}")

    def enter(self, host: int) -> list[str]:
        """What to put before a command so that it runs in a host."""
        prefix = ["nsenter", f"--net={self.namespace(host)}"]
        if self._in_user_namespace:
            assert self._emulator is not None, "the lab is open"
            prefix += [f"--user=/proc/{self._emulator.pid}/ns/user", "--preserve-credentials"]
        return [*prefix, "--"]

    def popen(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program in a host; `options` are those of `subprocess.Popen`."""
        program = subprocess.Popen([*self.enter(host), *argv], **options)
        with self._lock:
            self._programs = [p for p in self._programs if p.poll() is None]
            self._programs.append(program)
        return program

    def run(
        self, host: int, argv: Sequence[str], **options: Any
    ) -> subprocess.CompletedProcess[Any]:
        """Run a program in a host to its end; `options` are those of `subprocess.run`."""
        return subprocess.run(
            [*self.enter(host), *argv], check=options.pop("check", False), **options
        )

    def link(self, source: int, to: int) -> Link:
        """The settings now in force from one host to another."""
        return self._links[self._checked(source), self._checked(to)]

    def set_link(self, link: Link, source: int | None = None, to: int | None = None) -> None:
        """Change the links from `source` to `to`, this way only; None stands for every host."""
        roads = [(i, j) for i, j in self._links if source in (None, i) and to in (None, j)]
        if not roads:
            raise ValueError(f"no link goes from host {source} to host {to}")
        self._ask(do="change", roads=roads, link=asdict(link))
        self._links.update(dict.fromkeys(roads, link))

    def counts(self) -> dict[tuple[int, int], LinkCounts]:
        """What each link, (from, to), has carried, dropped and lost so far."""
        return {(i, j): LinkCounts(**counts) for i, j, counts in self._ask(do="counts")["counts"]}

    def emulator_cpu_s(self) -> float:
        """Processor time that the emulator has used."""
        return float(self._ask(do="counts")["cpu_s"])

    def describe(self) -> str:
        """What this lab is, for people and for logs."""
        settings = ", ".join(
            f"{name.rpartition('.')[2]} {v}" for name, v in self.tcp.sysctls().items()
        )
        real_time = "yes" if self.real_time else "no (delays grow when the processors are busy)"
        hosts = "  ".join(f"{i}={self.address(i)}" for i in range(self.hosts))
        links = dict.fromkeys(str(link) for link in self._links.values())
        return "\n".join(
            (
                f"hosts     {hosts}",
                *(f"links     {link}" for link in links),
                f"tcp       {settings}",
                f"real time {real_time}",
            )
        )

    def _checked(self, host: int, *, inner: bool = False) -> int:
        count = self.hosts + (self._inner if inner else 0)
        if not 0 <= host < count:
            raise ValueError(f"there are hosts 0..{count - 1}, not {host}")
        return host

    def _first_address(self, host: int, version: int) -> str:
        own = [ipaddress.ip_interface(text).ip for text in self._places[self._checked(host)].own]
        return str(next(ip for ip in own if ip.version == version))

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._control is not None, "the lab is open"
        try:
            self._control.send(json.dumps(request).encode())
            reply = json.loads(self._control.recv(MESSAGE_BYTES_MAX) or b'{"error": "it ended"}')
        except OSError as error:
            raise LabUnavailable(
                f"no {self.kind}: its emulator does not answer ({error})"
            ) from error
        if "error" in reply:
            raise LabUnavailable(f"no {self.kind}: {reply['error']}")
        return dict(reply)
