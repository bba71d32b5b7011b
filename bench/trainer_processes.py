"""One or more trainers of a run as processes, killed and started again with their folders.

The first founds the run; the others stand by. Each keeps its chain file in a folder of its own, so
one that is started again goes on where it was.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from node_listener import Gone, NodeListener
from swarm_processes import ROOT, Nodes, Run, RunFailed

from p2pswarm.progress.events import Ended, Event, Started, Stepped

CHECK = ROOT / "bench" / "check_chain.py"


class Trainers:
    """The trainers of one run."""

    def __init__(self, nodes: Nodes, run: Run, count: int, folder: Path) -> None:
        self.kills = 0
        """How often the coordinator was killed."""
        self.takeovers = 0
        """How often a trainer went on with the run from a record."""
        self.leader = ""
        """Who coordinates, as far as its events tell."""
        self._nodes = nodes
        self._run = run
        self._folder = folder
        self._lives: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._listener = NodeListener(nodes)
        for number in range(count):
            self._start(number)

    def events(self) -> Iterator[Event]:
        """What the coordinator tells, whoever that is, until one that has ended the run has left.

        A trainer that comes back only then finds nobody who could tell it that the run is over.
        """
        gone: set[str] = set()
        over = ""
        while set(self._names) - gone and not (over in gone and over == self.leader):
            name, said = self._listener.next()
            match said:
                case str():
                    continue
                case Gone(failed) if failed and not self._killed(name):
                    raise failed
                case Gone():
                    gone.add(name)
                    continue
                case Ended() if said.failed:
                    raise RunFailed(said.reason)
                case Ended() if name != self.leader:  # a standby tells of the end, too
                    continue
                case Ended():
                    over = name
                case Started():
                    self.takeovers += self.leader != ""
                    self.leader = name
                case Stepped():
                    self.leader = name
            yield said

    def kill_leader(self) -> None:
        """SIGKILL to the coordinator, unless it is done; it is started again with its folder."""
        if self._listener.ended:
            return
        number = self._names[self.leader]
        self._nodes.kill(self.leader)
        self.kills += 1
        self._start(number)

    def check_chains(self) -> None:
        """Prove by the independent script that one chain has all steps; RunFailed if not."""
        longest = 0
        for number in self._lives:
            for file in self._state(number).glob("*.chain"):
                longest = max(longest, checked(file)["steps"])
        if longest != self._run.steps:
            raise RunFailed(f"the chain has {longest} of {self._run.steps} steps")

    def _start(self, number: int) -> None:
        life = self._lives[number] = self._lives.get(number, -1) + 1
        name = f"trainer {number} life {life}"
        self._names = {n: k for n, k in self._names.items() if k != number} | {name: number}
        self._nodes.start_trainer(name, self._run, self._state(number), standby=number > 0)
        self._listener.listen_to(name)

    def _killed(self, name: str) -> bool:
        """Whether another life of this trainer has begun."""
        return name not in self._names

    def _state(self, number: int) -> Path:
        return self._folder / f"trainer-{number}"


def checked(file: Path) -> dict[str, Any]:
    """What the independent script says of a chain file; RunFailed unless all of it is right."""
    made = subprocess.run(
        [sys.executable, CHECK, file], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise RunFailed(f"{file.name}: {made.stderr.strip()}")
    said: dict[str, Any] = json.loads(made.stdout)
    return said
