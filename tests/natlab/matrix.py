"""Who reaches whom: real nodes behind two sites at a time, and what their links show.

Everybody joins through public nodes, `python -m p2pswarm.node`, which may serve as relays. Each
attempt has fresh nodes and so fresh ports, which no NAT remembers. The node that is to be
reached says how, and the other one is told: how addresses are found is another matter.

Units:   seconds.
Errors:  NodeFailed if a public node does not come up. What goes wrong at a site is a row: "no".
"""

import json
import os
import pickle
import re
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.crypto.key_file import identity_from

from .lab import NatLab, Site
from .profiles import Filtering

ROOT = Path(__file__).parents[2]
PEER = (sys.executable, str(Path(__file__).with_name("peer.py")))
NODE = (sys.executable, "-m", "p2pswarm.node")
PORT = 4000
START_S = 60.0  # for a process on a very busy machine
LEAVE_S = 5.0
PLACE = re.compile(r"^(?:peer \S+|reachable: \S+) at ([^\s,]+)", re.MULTILINE)
"""Where a node of the command line says that it can be dialled; the last one counts."""


class NodeFailed(RuntimeError):
    """A node did not come up; its own words are on stderr."""


class PathKind(StrEnum):
    """How a peer was reached."""

    DIRECT = "direct"
    MAPPED = "mapped"
    PUNCHED = "punched"
    RELAYED = "relayed"
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is tried."""

    tries: int = 1
    limit_s: float = 10.0
    """So long an attempt may take."""
    upgrade_s: float = 10.0
    """So long a relayed link may take to become a direct one."""
    settle_s: float = 2.0
    """Given to a node before it is used: by then it should know how it can be reached."""
    at_once: int = 1
    """So many attempts at a time, of sites that differ; times are worth less then."""
    relays: int = 0
    """So many public nodes are named as relays by nodes of ours behind a router."""
    node: tuple[str, ...] | None = None
    """Flags of `python -m p2pswarm.node`, which then is what others are to reach."""


A = TypeVar("A")
Tells = Callable[[], Any]
Row = dict[str, Any]
"""a, b, path, seconds (None: not reached), try; `dialled_by`: "a" or "b"; `says`: what the node
calls the path; `first`: path and seconds of a relayed link that became a direct one; `said`: what
both nodes logged of punching where a link stayed relayed; `why`: the error."""


class Program:
    """A node as a process in a host."""

    def __init__(self, lab: NatLab, host: int, argv: Sequence[str]) -> None:
        # Ctrl-C is for us, who end all of them
        self._process = lab.popen(
            host,
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # else an order that nobody took would be sent again when the pipe is closed
            cwd=ROOT,
            start_new_session=True,
        )
        self._read = b""

    def line(self, wait_s: float) -> str:
        """The next line that it prints; NodeFailed if it prints none in time, or has ended."""
        assert self._process.stdout is not None
        until_s = time.monotonic() + wait_s
        while b"\n" not in self._read:
            left_s = max(0.0, until_s - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left_s)
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise NodeFailed("it has ended" if ready else f"it was silent for {wait_s:g} s")
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def lines(self) -> list[str]:
        """What it has printed since it was last asked."""
        found = []
        try:
            while True:
                found.append(self.line(0.0))
        except NodeFailed:
            return found

    def told(self, wait_s: float, **order: Any) -> dict[str, Any]:
        """Its answer to an order."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError as error:
            raise NodeFailed("it has ended") from error
        answer: dict[str, Any] = json.loads(self.line(wait_s))
        return answer

    def end(self) -> None:
        """Ask it to leave; if it stays, kill it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.terminate()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def _program(lab: NatLab, host: int, *argv: str) -> Iterator[Program]:
    program = Program(lab, host, argv)
    try:
        yield program
    finally:
        program.end()


@contextmanager
def public_nodes(lab: NatLab, flags: Sequence[str] = ()) -> Iterator[None]:
    """Nodes in the public hosts; the first is the one that all others join through."""
    with ExitStack() as stack:
        for host in range(lab.public):
            through = ("--bootstrap", f"{lab.address(0)}:{PORT}") if host else ()
            where = ("--role", "bootstrap", "--listen", f"[::]:{PORT}")
            node = stack.enter_context(_program(lab, host, *NODE, *where, *through, *flags))
            try:
                node.line(START_S)
            except NodeFailed as failure:
                raise NodeFailed(f"the public node {lab.address(host)}: {failure}") from None
        yield


@contextmanager
def peer(lab: NatLab, site: Site, plan: Plan) -> Iterator[Program]:
    """A node of ours at a site; NodeFailed if it does not join."""
    # the last ones: the first is the bootstrap node, which has enough to do
    hosts = range(lab.public - 1, lab.public - 1 - plan.relays, -1) if site.routers else ()
    relays = [flag for host in hosts for flag in ("--relay", _public(lab, site, host))]
    with _program(lab, site.host, *PEER, *_flags(lab, site), *relays) as program:
        program.line(START_S)
        yield program


def attempts(
    lab: NatLab, sites_a: Sequence[Site], sites_b: Sequence[Site], plan: Plan
) -> Iterator[Row]:
    """Each of `sites_a` reaches each of `sites_b`, as often as planned. Public nodes are up."""

    def row(pair: tuple[Site, Site, int]) -> Row:
        a, b, number = pair
        names = {"a": a.profile.name, "b": b.profile.name}
        return {**names, **_attempt(lab, a, b, plan), "try": number}

    with ThreadPoolExecutor(plan.at_once) as pool:
        for number in range(1, plan.tries + 1):
            for apart in rounds(sites_a, sites_b):
                yield from pool.map(row, [(a, b, number) for a, b in apart])


def rounds(sites_a: Sequence[A], sites_b: Sequence[A]) -> Iterator[list[tuple[A, A]]]:
    """All pairs, in rounds in which no site occurs twice: their attempts may go on at once."""
    long, short = (sites_a, sites_b) if len(sites_a) > len(sites_b) else (sites_b, sites_a)
    for shift in range(len(long)):
        pairs = [(each, long[(i + shift) % len(long)]) for i, each in enumerate(short)]
        yield pairs if short is sites_a else [(a, b) for b, a in pairs]


def path_of(shown: dict[str, Any], a: Site, b: Site, relays: Sequence[str]) -> PathKind:
    """How a's link to b came about: in a's own word, else from what can be seen of it.

    A connection that a router let in though it lets nobody in has gone through a punched hole. To
    who dials, a mapped port is an address like others: that it is one shows in whose router it is.
    """
    says = shown["says"]
    if says not in {None, PathKind.DIRECT}:
        return PathKind(says)
    if shown["remote"] in relays:
        return PathKind.RELAYED
    dialled = (b if shown["dialled"] else a).profile
    if dialled.port_mapping:
        return PathKind.MAPPED
    if says == PathKind.DIRECT:
        return PathKind.DIRECT
    return PathKind.DIRECT if dialled.filtering is Filtering.INDEPENDENT else PathKind.PUNCHED


def table(rows: Sequence[Row]) -> str:
    """A line for each a, a column for each b: the paths, how often, and the median time."""
    names_a, names_b = names(rows, "a"), names(rows, "b")
    cells = {(a, b): cell(rows, a, b) for a in names_a for b in names_b}
    first = max(len(name) for name in (*names_a, "a \\ b"))
    widths = {b: max(len(b), *(len(cells[a, b]) for a in names_a)) for b in names_b}
    lines = [["a \\ b".ljust(first), *(b.ljust(widths[b]) for b in names_b)]]
    lines += [[a.ljust(first), *(cells[a, b].ljust(widths[b]) for b in names_b)] for a in names_a]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def summary(rows: Sequence[Row]) -> str:
    """How many attempts ended without a relay, and how long they took; and of relayed links."""
    lines = []
    direct = [row for row in rows if row["path"] not in {PathKind.RELAYED, PathKind.NO}]
    relayed = [row.get("first", row) for row in rows]
    relayed = [row for row in relayed if row["path"] == PathKind.RELAYED]
    for what, found in (("without a relay", direct), ("usable through a relay", relayed)):
        took_s = sorted(row["seconds"] for row in found if row["seconds"] is not None)
        if took_s:
            p50, p95 = (took_s[int(share * (len(took_s) - 1))] for share in (0.5, 0.95))
            times = f": p50 {p50:.3f} s, p95 {p95:.3f} s, at most {took_s[-1]:.3f} s"
            lines.append(f"{what}: {len(found)} of {len(rows)}{times}")
    moved = [row["seconds"] - row["first"]["seconds"] for row in rows if "first" in row]
    if moved:
        lines.append(f"from that answer to the punched link: p50 {statistics.median(moved):.3f} s")
    return "\n".join(lines)


def names(rows: Sequence[Row], side: str) -> list[str]:
    """The profiles on side "a" or "b", in the order in which they were tried."""
    return list(dict.fromkeys(row[side] for row in rows))


def cell(rows: Sequence[Row], a: str, b: str) -> str:
    """How a reached b: each path, how often, and the median time."""
    ours = [row for row in rows if (row["a"], row["b"]) == (a, b)]
    parts = []
    for kind in PathKind:
        found = [row for row in ours if row["path"] == kind]
        if found:
            times = f" {len(found)}/{len(ours)}" if len(ours) > 1 else ""
            took_s = [row["seconds"] for row in found if row["seconds"] is not None]
            median = f" {statistics.median(took_s):.2f} s" if took_s else ""
            parts.append(f"{kind}{times}{median}")
    return ", ".join(parts)


def _attempt(lab: NatLab, a: Site, b: Site, plan: Plan) -> Row:
    """One attempt: what a row says of it."""
    relays = [
        address(host) for address in (lab.address, lab.address6) for host in range(lab.public)
    ]
    try:
        with _target(lab, b, plan) as (card, theirs_said), peer(lab, a, plan) as ours:
            time.sleep(plan.settle_s)
            told = ours.told(
                START_S + plan.limit_s + plan.upgrade_s,
                do="reach",
                card=card(),
                limit_s=plan.limit_s,
                upgrade_s=plan.upgrade_s,
                relays=relays,
            )
            stays = told["reached"] and told["relayed"] and "upgraded" not in told
            said = [ours.told(START_S, do="said")["said"], theirs_said()] if stays else None
    except NodeFailed as failure:
        return {"path": PathKind.NO, "seconds": None, "why": str(failure)}
    if not told["reached"]:
        return {"path": PathKind.NO, "seconds": None, "why": told["why"]}
    row: Row = {"said": said} if said else {}
    if "upgraded" in told:
        row["first"] = {"path": path_of(told, a, b, relays), "seconds": told["seconds"]}
        told = told["upgraded"]
    return {
        "path": path_of(told, a, b, relays),
        "seconds": told["seconds"],
        "dialled_by": "a" if told["dialled"] else "b",
        "says": told["says"],
        **row,
    }


@contextmanager
def _target(lab: NatLab, site: Site, plan: Plan) -> Iterator[tuple[Tells, Tells]]:
    """A node that is to be reached: its card, and what it has logged, as they are when asked."""
    if plan.node is None:
        with peer(lab, site, plan) as theirs:
            yield (
                lambda: theirs.told(START_S, do="card")["card"],
                lambda: theirs.told(START_S, do="said")["said"],
            )
        return
    with tempfile.TemporaryDirectory() as folder:
        key = Path(folder, "identity.key")
        with identity_from(key) as identity:
            peer_id = identity.peer_id
        where = (*_flags(lab, site), "--identity", str(key), *plan.node)
        with _program(lab, site.host, *NODE, *where) as program:
            said = [program.line(START_S)]

            def card() -> str:
                said.extend(program.lines())
                place = PLACE.findall("\n".join(said))[-1]
                return pickle.dumps((Contact(peer_id, Address.parse(place)), None)).hex()

            yield card, program.lines


def _flags(lab: NatLab, site: Site) -> tuple[str, ...]:
    """Flags: whom a node at a site joins through, and where it listens."""
    where = f"[{site.address}]:0" if site.profile.ipv6 else ":0"
    return ("--bootstrap", _public(lab, site, 0), "--listen", where)


def _public(lab: NatLab, site: Site, host: int) -> str:
    """Where a site dials a public node."""
    return f"[{lab.address6(host)}]:{PORT}" if site.profile.ipv6 else f"{lab.address(host)}:{PORT}"
