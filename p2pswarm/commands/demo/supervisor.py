"""The rules of the demo: which servers it starts and kills, what it says, when it gives up.

It is told the trainer's events, and when server processes start and end. It answers with actions.
"""

from dataclasses import dataclass
from random import Random

from p2pswarm.commands.demo.options import SLOW_SERVERS, Options
from p2pswarm.progress.events import Event, Stepped
from p2pswarm.progress.history import RunHistory

RESTARTS_MAX = 3  # servers that end by themselves; with more, something is wrong here


class Kills:
    """The times of kills and their victims: never the last ready server of its stage.

    A kill that would stop the run waits until a replica is ready.
    """

    def __init__(self, steps: int, every: int | None, rng: Random) -> None:
        self._every = every
        self._next_step = every if every is not None else max(1, steps // 2)
        self._steps = steps
        self._rng = rng

    def due(self, step: int) -> bool:
        """Return whether a kill is due at `step`; after the last step none is."""
        return bool(self._next_step) and self._next_step <= step < self._steps

    def victim(self, history: RunHistory) -> str | None:
        """The short id of the server to kill now, or None if each is needed."""
        spare = [peer for stage in history.stages for peer in history.ready(stage)[1:]]
        if not spare:
            return None
        stage = self._rng.choice(sorted({peer.stage for peer in spare}))
        return self._rng.choice(history.ready(stage)).peer

    def on_kill(self, step: int) -> None:
        """A server was killed at `step`."""
        self._next_step = step + self._every if self._every else 0


@dataclass(frozen=True, slots=True)
class StartServer:
    """Start a server process under this name."""

    name: str
    slow: bool = False
    """It is a slow machine, for the last stage."""


@dataclass(frozen=True, slots=True)
class KillServer:
    """End the server process of this name with SIGKILL."""

    name: str


@dataclass(frozen=True, slots=True)
class Remark:
    """Tell the person who watches."""

    text: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the demo for this reason."""

    reason: str


DemoAction = StartServer | KillServer | Remark | GiveUp


class Supervisor:
    """The rules for one demo."""

    def __init__(self, options: Options, kills: Kills) -> None:
        self._options = options
        self._kills = kills
        self._actions: list[DemoAction] = []
        self._started = 0
        self._unasked = 0
        self._names: dict[str, str] = {}
        """The process names of living servers, by their short peer ids."""
        self._killed: set[str] = set()
        self._spare_asked = False
        self.history = RunHistory()

    def begin(self) -> None:
        """Ask for every server of every stage."""
        slow = SLOW_SERVERS if self._options.uneven else 0
        for number in range(self._options.stages * self._options.replicas):
            self._start(slow=number < slow)

    def on_peer(self, name: str, peer: str) -> None:
        """Learn the short id of a server process."""
        self._names[peer] = name

    def on_event(self, event: Event) -> None:
        """Note an event of the run, and kill a server if one is due."""
        self.history.on_event(event)
        if isinstance(event, Stepped) and self._kills.due(self.history.step):
            self._kill()

    def on_server_end(self, name: str, words: str) -> None:
        """Replace a server process that ended by itself; too many of them end the demo."""
        peer = next((peer for peer, of in self._names.items() if of == name), None)
        if peer is not None:
            del self._names[peer]
        if name in self._killed or self.history.ended is not None:
            return
        self._unasked += 1
        self._actions.append(Remark(f"server {peer or name} ended by itself: {words}"))
        if self._unasked > RESTARTS_MAX:
            self._actions.append(GiveUp(f"servers end by themselves: {words}"))
        else:
            self._start()

    def actions(self) -> list[DemoAction]:
        """Return what to do now; drained by reading."""
        actions, self._actions = self._actions, []
        return actions

    def _start(self, *, slow: bool = False) -> None:
        self._started += 1
        self._actions.append(StartServer(f"server-{self._started}", slow))

    def _kill(self) -> None:
        """Kill a server that can be spared, or ask for a spare one first."""
        victim = self._kills.victim(self.history)
        if victim is None or victim not in self._names:
            if self._options.replicas == 1 and not self._spare_asked:
                self._spare_asked = True
                text = "each server is needed: a spare one is started before one is killed"
                self._actions.append(Remark(text))
                self._start()
            return
        name = self._names.pop(victim)
        self._killed.add(name)
        self.history.on_kill()
        self._kills.on_kill(self.history.step)
        self._spare_asked = False
        text = f"KILLED server {victim} (SIGKILL); another is started"
        self._actions += [KillServer(name), Remark(text)]
        self._start()
