"""The process between the hosts: it takes each packet up, waits, and puts it down.

Started by `lab.py`, which talks to it over a socket, one JSON message a
datagram. When that socket closes, however the lab ended, this process kills
what still runs in the hosts and exits, and the namespaces go with it.

Packets wait in one list per link, in order, because no link lets one overtake
another; a heap knows which link is due next. `select` wakes us: its timeout
has microseconds, that of `epoll` milliseconds. Where it is allowed the process
runs in real time, since a real network does not slow down when the processors
are busy; it needs a few per cent of one.

Units:   seconds on the monotonic clock, bytes.
Errors:  what the kernel refuses goes to the lab as {"error": one line}.
Source:  tests/wanlab/link.py has the rules, packet.py the format.
"""

import contextlib
import ctypes
import heapq
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .hosts import Host, enter_user_namespace, kill_inhabitants, make_host, make_namespace
from .link import FRAME_OVERHEAD_BYTES, Link, LinkQueue
from .packet import VNET_BYTES, cut, train_of

FRAME_BYTES_MAX = VNET_BYTES + (1 << 16)  # the largest train that the kernel makes
BURST_PACKETS = 64  # taken from one host before the others have their turn
REQUEST_BYTES_MAX = 1 << 20
TICK_S = 0.0005  # what is due within this time is delivered together: fewer wakes, 0.25 ms late

_PR_SET_TIMERSLACK = 29


@dataclass(slots=True)
class Road:
    """One directed link and what is on its way there."""

    queue: LinkQueue
    to_fd: int
    flying: deque[tuple[float, bytes]] = field(default_factory=deque)


class Switch:
    """All hosts and all roads between them."""

    def __init__(self, hosts: Sequence[Host], link: Link, seed: int) -> None:
        self._hosts = hosts
        self._roads: dict[tuple[int, int], Road] = {}
        self._routes: dict[int, dict[bytes, Road]] = {host.tun_fd: {} for host in hosts}
        self._due: list[tuple[float, int, Road]] = []
        self._order = 0  # breaks ties in the heap
        for i, source in enumerate(hosts):
            for j, target in enumerate(hosts):
                if i == j:
                    continue
                rng = random.Random(f"{seed} {i} {j}")
                road = Road(LinkQueue(link, rng), target.tun_fd)
                self._roads[i, j] = road
                for address in target.addresses:
                    self._routes[source.tun_fd][address] = road

    def change(self, source: int, to: int, link: Link) -> None:
        """Put other settings in force on one road."""
        self._roads[source, to].queue.change(link, time.monotonic())

    def counts(self) -> list[list[Any]]:
        """[from, to, LinkCounts as a dict] of every road."""
        return [[i, j, asdict(road.queue.counts)] for (i, j), road in self._roads.items()]

    def take(self, tun_fd: int) -> None:
        """Read what a host has sent and put it on its road."""
        routes = self._routes[tun_fd]
        for _ in range(BURST_PACKETS):
            try:
                frame = os.read(tun_fd, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            # IPv4 destination, or that of IPv6; multicast and strangers have no road
            target = frame[26:30] if frame[VNET_BYTES] >> 4 == 4 else frame[34:50]
            road = routes.get(target)
            if road is not None:
                self._send(road, frame, time.monotonic())

    def deliver(self) -> float | None:
        """Hand over what has arrived; how long until the next does, None if nothing flies."""
        due = self._due
        while due:
            now_s = time.monotonic()
            wait_s = due[0][0] - now_s
            if wait_s > 0:
                return max(wait_s, TICK_S)
            road = due[0][2]
            flying = road.flying
            while flying and flying[0][0] <= now_s:
                # A host that refuses a packet has lost it, as with any network card.
                with contextlib.suppress(OSError):
                    os.write(road.to_fd, flying.popleft()[1])
            if flying:
                self._order += 1
                heapq.heapreplace(due, (flying[0][0], self._order, road))
            else:
                heapq.heappop(due)
        return None

    def _send(self, road: Road, frame: bytes, now_s: float) -> None:
        train = train_of(frame)
        if train is None:
            packet_bytes = len(frame) - VNET_BYTES + FRAME_OVERHEAD_BYTES
            arrive_s = road.queue.push(packet_bytes, now_s)
            if arrive_s is not None:
                self._fly(road, arrive_s, frame)
            return
        headers_bytes = train.header_bytes + FRAME_OVERHEAD_BYTES
        for run in road.queue.push_train(
            train.count,
            headers_bytes + train.segment_bytes,
            headers_bytes + train.last_bytes,
            now_s,
        ):
            whole = run.stop - run.first == train.count
            part = frame if whole else cut(frame, train, run.first, run.stop)
            self._fly(road, run.arrive_s, part)

    def _fly(self, road: Road, arrive_s: float, frame: bytes) -> None:
        if not road.flying:
            self._order += 1
            heapq.heappush(self._due, (arrive_s, self._order, road))
        road.flying.append((arrive_s, frame))


def run(control: socket.socket, switch: Switch, tun_fds: list[int]) -> None:
    """Move packets until the lab closes its end of `control`."""
    waiting = [control.fileno(), *tun_fds]
    timeout_s: float | None = None
    while True:
        ready, _, _ = select.select(waiting, (), (), timeout_s)
        for fd in ready:
            if fd != control.fileno():
                switch.take(fd)
            elif not answer(control, switch):
                return
        timeout_s = switch.deliver()


def answer(control: socket.socket, switch: Switch) -> bool:
    """Obey one message of the lab; False when it has gone."""
    try:
        request = control.recv(REQUEST_BYTES_MAX)
    except ConnectionResetError:  # it was killed before it read our last reply
        return False
    if not request:
        return False
    message = json.loads(request)
    if message["do"] == "change":
        for source, to in message["roads"]:
            switch.change(source, to, Link(**message["link"]))
        reply: dict[str, Any] = {}
    else:
        reply = {"counts": switch.counts(), "cpu_s": time.process_time()}
    control.send(json.dumps(reply).encode())
    return True


def ask_for_precision() -> bool:
    """Run in real time and wake without slack; True if the kernel lets us."""
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def main() -> None:
    """Set the hosts up as the lab's first message says, then move packets."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the lab, which closes us
    control = socket.socket(fileno=int(sys.argv[1]))
    setup = json.loads(control.recv(REQUEST_BYTES_MAX))
    hosts: list[Host] = []
    try:
        in_user_namespace = enter_user_namespace()
        sysctls = setup["sysctls"]
        hosts += [
            make_host(place["own"], place["behind"], setup["mtu_bytes"], sysctls)
            for place in setup["places"]
        ]
        inner_fds = [make_namespace(sysctls) for _ in range(setup["inner"])]
    except OSError as error:
        control.send(json.dumps({"error": str(error)}).encode())
        return
    namespace_fds = [*(host.namespace_fd for host in hosts), *inner_fds]
    try:
        reply = {
            "namespace_fds": namespace_fds,
            "in_user_namespace": in_user_namespace,
            "real_time": ask_for_precision(),
        }
        control.send(json.dumps(reply).encode())
        switch = Switch(hosts, Link(**setup["link"]), setup["seed"])
        run(control, switch, [host.tun_fd for host in hosts])
    except BrokenPipeError:
        return  # the lab has ended before it could read an answer
    finally:
        kill_inhabitants(namespace_fds)


if __name__ == "__main__":
    main()
