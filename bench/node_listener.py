"""What the nodes of a swarm say, in one queue: a thread reads each of them.

A bench that follows several processes at once cannot wait for a line of one of them.
"""

import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from swarm_processes import Nodes, RunFailed, parsed

from p2pswarm.progress.events import Ended, Event


@dataclass(frozen=True, slots=True)
class Gone:
    """A node has ended."""

    failed: RunFailed | None
    """Its last word, if it did not end well; a node that was killed did not."""


Said = Event | str | Gone
"""A line that is no event is for people, and a text here."""


class NodeListener:
    """Hears all nodes that it was told to listen to."""

    def __init__(self, nodes: Nodes, keep: Path | None = None) -> None:
        """`keep`: a folder for all that a node says, with the seconds since now."""
        self.ended: set[str] = set()
        """Who has told the end of its run, even if nobody has taken that from the queue yet."""
        self._nodes = nodes
        self._keep = keep
        self._begun_s = time.monotonic()
        self._said: queue.SimpleQueue[tuple[str, Said]] = queue.SimpleQueue()

    def listen_to(self, name: str) -> None:
        """Read a node to its end."""
        reader = threading.Thread(target=self._read, args=(name,), daemon=True)
        self._nodes.readers.append(reader)
        reader.start()

    def next(self, timeout_s: float | None = None) -> tuple[str, Said] | None:
        """Who said what; None if nobody says anything in time."""
        try:
            return self._said.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _read(self, name: str) -> None:
        failed = None
        try:
            for line in self._nodes.lines(name):
                self._write_down(name, line)
                said = parsed(line)
                if isinstance(said, Ended):
                    self.ended.add(name)
                self._said.put((name, said))
        except RunFailed as error:
            failed = error
        self._said.put((name, Gone(failed)))

    def _write_down(self, name: str, line: str) -> None:
        if self._keep is not None:
            with (self._keep / f"{name}.said").open("a") as file:
                file.write(f"{time.monotonic() - self._begun_s:.2f} {line}")
