"""ServersView: the servers of a run as its events tell them, those that are gone for a while too.

Units:   `at` in seconds since 1970, as the events say.
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from p2pswarm.progress.events import (
    Departure,
    Joined,
    Left,
    MachineFacts,
    PeerLine,
    Peers,
    Serving,
)
from p2pswarm.progress.printable import printable

STAGES_MAX = 256  # of a run
SERVERS_MAX = 4_096  # of a run
LOST_KEPT_S = 600.0  # people who look away for a moment still see who went, and why
LOST_MAX = 256  # of them: a run that loses more in ten minutes has other worries
NAMES_MAX = 8_192  # a server that comes back has its name at once
UNLISTED_S = 10.0  # a new coordinator hears of all servers within some seconds
FIGURES_OLD_S = 30.0  # a load comes each second, or in a log each ten
NAME_CHARS, REASON_CHARS, CURRENCY_CHARS = 64, 200, 3
NUMBER_MAX = 1e18  # beyond any figure of a run
FIGURES = (
    *("queued", "rate_per_s", "counted", "recomputed", "unheard_s", "weights_share"),
    *("forward_s", "backward_s", "queue_s", "in_bytes", "out_bytes"),
    *("up_bytes_per_s", "down_bytes_per_s", "link_bytes_per_s", "free_bytes", "state_bytes"),
    "price_per_hour",
)
PATHS = ("direct", "mapped", "punched", "relayed")
JOINING, READY, MOVING, LOST = "joining", "ready", "moving", "lost"


def shown(text: str, chars: int = REASON_CHARS) -> str:
    """A text of a peer, printable and short."""
    return printable(text[:chars])


def plain_number(value: float | None) -> float | None:
    """A number that JSON has, and sums too; None for others."""
    return value if value is not None and abs(value) <= NUMBER_MAX else None


@dataclass(slots=True)
class _ServerRow:
    """One server."""

    stage: int
    state: str
    since: float
    """When its state began."""
    joined: float
    figures: PeerLine | None = None
    figures_at: float = 0.0
    unlisted: float | None = None
    """Since when the trainer does not list it; None: it does."""
    why: str = ""
    reason: str = ""


@dataclass(slots=True)
class _StageRow:
    """One stage."""

    ready: int = 0
    since: float | None = None
    """Since when nobody serves it; None: somebody does."""


@dataclass(frozen=True, slots=True)
class MachineName:
    """The facts of a server's machine."""

    name: str
    device: str = ""
    threads: int = 0
    region: str = ""
    software: str = ""


class ServersView:
    """Takes events of servers; `rows` and `stages` are plain values of bounded size."""

    def __init__(self) -> None:
        self._servers: dict[str, _ServerRow] = {}
        self._stages: list[_StageRow] = []
        self._lost: dict[str, None] = {}
        """Those that are lost, the first one first."""
        self._machines: dict[str, MachineName] = {}
        self.joined = 0
        """How often a server was given a stage."""
        self.left: Counter[str] = Counter({why.value: 0 for why in Departure})
        """How often a server's part was over, by the reason."""

    def begin(self, stages: int, at: float) -> None:
        """The run has so many stages; nobody is known to serve them."""
        self._grow(min(stages, STAGES_MAX), at)

    def name(self, server: str) -> str:
        """What its owner calls a server's machine; empty if that is not known."""
        machine = self._machines.get(shown(server, NAME_CHARS))
        return machine.name if machine else ""

    def on_joined(self, event: Joined, at: float) -> None:
        """A server was given a stage."""
        self.joined += 1
        self._prune(at)
        self._name(event.server, event.name)
        self._set(event.server, event.stage, JOINING, at)

    def on_serving(self, event: Serving, at: float) -> None:
        """A server gets work from now on."""
        self._name(event.server, event.name)
        self._set(event.server, event.stage, READY, at)

    def on_left(self, event: Left, at: float) -> None:
        """A server's part is over; it stays here for a while."""
        self.left[event.why.value] += 1
        self._name(event.server, event.name)
        state = MOVING if event.why is Departure.MOVED else LOST
        if (server := self._set(event.server, event.stage, state, at)) is not None:
            server.why, server.reason = event.why.value, shown(event.reason)
        self._prune(at)

    def on_facts(self, event: MachineFacts) -> None:
        """A server has told of its machine."""
        self._learn(
            event.server,
            MachineName(
                shown(event.name, NAME_CHARS),
                shown(event.device, NAME_CHARS),
                event.threads,
                shown(event.region, NAME_CHARS),
                shown(event.software, NAME_CHARS),
            ),
        )

    def on_peers(self, event: Peers, at: float) -> None:
        """All servers that the trainer has, with their figures."""
        listed = {shown(line.peer, NAME_CHARS): line for line in event.peers[:SERVERS_MAX]}
        for name, line in listed.items():
            server = self._set(name, line.stage, READY if line.ready else JOINING, at)
            if server is not None:
                server.figures, server.figures_at = line, at
        for name, server in list(self._servers.items()):
            if name in listed or server.state == LOST:
                continue
            if server.unlisted is None:
                server.unlisted = at
            elif at > server.unlisted + UNLISTED_S:
                server.why, server.reason = Departure.LOST.value, "its trainer knows it no more"
                self._change(name, server, server.stage, LOST, server.unlisted)
        self._prune(at)

    def on_own(self, line: PeerLine, at: float, *, led: bool) -> None:
        """A server's own figures, which say nothing of others.

        `led`: its trainer tells events as well, and knows whether it serves.
        """
        server = self._servers.get(shown(line.peer, NAME_CHARS))
        if not led:
            server = self._set(line.peer, line.stage, READY if line.ready else JOINING, at)
        if server is not None and server.state != LOST:
            before = server.figures
            if before is not None:  # a price is what the trainer was told
                line = replace(line, price_per_hour=before.price_per_hour, currency=before.currency)
            server.figures, server.figures_at = line, at

    def on_leader(self, at: float) -> None:
        """Another trainer leads: its servers come to it anew."""
        for name, server in self._servers.items():
            if server.state in (READY, MOVING):
                self._change(name, server, server.stage, JOINING, at)

    def rows(self, now_s: float) -> dict[str, dict[str, Any]]:
        """A row for each server, by its id; the ready ones of stage 0 first."""
        order = {READY: 0, JOINING: 1, MOVING: 2, LOST: 3}
        shown_now = [
            (server.stage, order[server.state], name)
            for name, server in self._servers.items()
            if server.state != LOST or now_s <= server.since + LOST_KEPT_S
        ]
        return {name: self._row(name, now_s) for _, _, name in sorted(shown_now)}

    def stages(self, now_s: float) -> list[dict[str, Any]]:
        """A row for each stage of the run, also for one that nobody serves."""
        rows: list[dict[str, Any]] = [
            {
                "stage": number,
                "ready": stage.ready,
                "joining": 0,
                "since": stage.since,
                "rate_per_s": 0.0,
                "queued": 0,
                "queue_s": None,
                "servers": [],
            }
            for number, stage in enumerate(self._stages)
        ]
        waits: dict[int, list[float]] = {}
        for name, row in self.rows(now_s).items():
            if row["state"] in (LOST, MOVING) or row["stage"] >= len(rows):
                continue
            stage = rows[row["stage"]]
            stage["servers"].append(name)
            stage["joining"] += row["state"] == JOINING
            stage["rate_per_s"] += row["rate_per_s"] or 0.0
            stage["queued"] += row["queued"] or 0
            if row["queue_s"] is not None:
                waits.setdefault(row["stage"], []).append(row["queue_s"])
        for number, of in waits.items():
            rows[number]["queue_s"] = sum(of) / len(of)
        return rows

    def links(self) -> dict[str, int]:
        """How many links each kind of path carries."""
        lines = [one.figures for one in self._servers.values() if one.figures and one.state != LOST]
        return {path: sum(getattr(line, path) for line in lines) for path in PATHS}

    def _row(self, name: str, now_s: float) -> dict[str, Any]:
        server = self._servers[name]
        machine = self._machines.get(name, NAMELESS)
        line, age_s = server.figures, max(0.0, now_s - server.figures_at)
        figures = {what: plain_number(getattr(line, what)) if line else None for what in FIGURES}
        if server.state != READY or age_s > FIGURES_OLD_S:
            figures["rate_per_s"] = 0.0
        return {
            "name": machine.name,
            "stage": server.stage,
            "state": server.state,
            "since": server.since,
            "joined": server.joined,
            "why": server.why,
            "reason": server.reason,
            "device": machine.device,
            "threads": machine.threads,
            "region": machine.region,
            "software": machine.software,
            "links": {path: getattr(line, path) if line else 0 for path in PATHS},
            "figures_age_s": age_s if line else None,
            "currency": shown(line.currency, CURRENCY_CHARS) if line else "",
            **figures,
        }

    def _set(self, server: str, stage: int, state: str, at: float) -> _ServerRow | None:
        """A server is in this state of this stage; None if there is no room for it."""
        if not 0 <= stage < STAGES_MAX:
            return None
        self._grow(stage + 1, at)
        name = shown(server, NAME_CHARS)
        one = self._servers.get(name)
        if one is None:
            if len(self._servers) >= SERVERS_MAX + LOST_MAX:
                return None
            one = self._servers[name] = _ServerRow(stage, MOVING, at, at)
        if state == JOINING and (one.state in (LOST, MOVING) or one.stage != stage):
            one.joined = at
        if (one.state, one.stage) != (state, stage):
            self._change(name, one, stage, state, at)
        if state in (JOINING, READY):
            one.unlisted, one.why, one.reason = None, "", ""
        return one

    def _change(self, name: str, one: _ServerRow, stage: int, state: str, at: float) -> None:
        if one.state == READY:
            before = self._stages[one.stage]
            before.ready -= 1
            if not before.ready:
                before.since = at
        one.stage, one.state, one.since = stage, state, at
        if state == READY:
            self._stages[stage].ready += 1
            self._stages[stage].since = None
        self._lost.pop(name, None)
        if state == LOST:
            self._lost[name] = None
            if len(self._lost) > LOST_MAX:
                self._forget(next(iter(self._lost)))

    def _grow(self, stages: int, at: float) -> None:
        while len(self._stages) < stages:
            self._stages.append(_StageRow(since=at))

    def _name(self, server: str, name: str) -> None:
        if name and not self.name(server):
            self._learn(server, MachineName(shown(name, NAME_CHARS)))

    def _learn(self, server: str, machine: MachineName) -> None:
        self._machines[shown(server, NAME_CHARS)] = machine
        if len(self._machines) > NAMES_MAX:
            del self._machines[next(iter(self._machines))]

    def _prune(self, at: float) -> None:
        """Forget those who are gone for long."""
        while self._lost and at > self._servers[next(iter(self._lost))].since + LOST_KEPT_S:
            self._forget(next(iter(self._lost)))

    def _forget(self, name: str) -> None:
        del self._lost[name], self._servers[name]


NAMELESS = MachineName("")
