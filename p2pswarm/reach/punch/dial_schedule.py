"""DialSchedule: when one side of an attempt dials which address, and when it tries again.

Source:  docs/punching.md; DCUtR of libp2p for the half round trip.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from p2pswarm.base.ids import Address

RETRY_S_MAX = 0.1  # a round trip or two: 4 of 4 whatever the skew, where 50 ms exactly got 0 of 4
TRIES_MAX = 16  # 1 s of them: who is dialled by mistake is not dialled for long
HARD_LATER_S = 0.05  # so much later a side dials whose address the other one cannot know
DIAL_S = 2.5  # the kernel repeats a SYN that was dropped after 1 s
WAIT_S_MAX = 1.0  # half of a round trip that is longer is no use


@dataclass(frozen=True, slots=True)
class PunchDial:
    """An address to dial, and from which port of ours; 0: any."""

    to: Address
    from_port: int


def wait_s(round_trip_s: float, held_ms: int) -> float:
    """Return the time that the initiator waits after its word to go, until that has arrived."""
    return min(max(0.0, (round_trip_s - held_ms / 1000) / 2), WAIT_S_MAX)


class DialSchedule:
    """The dials of one side, until `over_s`.

    Two SYNs that cross open both routers. One that comes early is dropped, which costs nothing
    because the kernel's SYN is still there, or answered with RST: then both sides try again after
    pauses that they do not share, because equal ones would miss each other for ever.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._due_s: dict[PunchDial, float] = {}
        self._tries: dict[PunchDial, int] = {}
        """The number of dials of each that was due once."""
        self._stopped = False
        self.over_s = float("inf")
        """End of the attempt, once that is known."""

    def add(self, dials: Iterable[PunchDial], at_s: float) -> None:
        """Have these dialled from `at_s` on; those that are known already stay as they are."""
        for dial in dials:
            if dial not in self._tries and not self._stopped:
                self._due_s.setdefault(dial, at_s)

    def end(self, at_s: float) -> None:
        """Dial until then, and no longer."""
        self.over_s = at_s

    def stop(self) -> None:
        """Begin nothing more: a connection is up. Those under way may still be the better one."""
        self._stopped = True
        self._due_s.clear()

    def due(self, now_s: float) -> list[PunchDial]:
        """The dials to begin now; report each that fails to `on_failure`."""
        if now_s >= self.over_s:
            self._due_s.clear()
        due = [dial for dial, at_s in self._due_s.items() if at_s <= now_s]
        for dial in due:
            del self._due_s[dial]
            self._tries[dial] = self._tries.get(dial, 0) + 1
        return due

    def on_failure(self, dial: PunchDial, now_s: float) -> None:
        """Note that a dial was refused, or that somebody else has answered: try again."""
        at_s = now_s + self._rng.uniform(0, RETRY_S_MAX)
        if at_s < self.over_s and not self._stopped and self._tries[dial] < TRIES_MAX:
            self._due_s[dial] = at_s

    def next_deadline_s(self) -> float | None:
        """Return when something is due, or all is over; None if nothing is known yet."""
        at_s = min((*self._due_s.values(), self.over_s))
        return None if at_s == float("inf") else at_s
