"""Reports of a server to its trainer: notes in order, its load, how long gradients take."""

from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.estimates import Ema
from p2pswarm.models.compute.base import Key
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.membership import load_every_s
from p2pswarm.run.messages.trainers import ALIVE_S, SILENCE_S

NOTES_MAX = 100_000  # a trainer that has not read so many does not train any more
LOOK_EVERY_S = 1.0  # how often it looks whether it hears the trainer; the load of a small run
SLACK_S = 0.01  # a look may come as much before the load's time, and the next one is far
SMOOTHING = 0.2  # of the measured times: about the last ten


class SignOfLife(Enum):
    """The news to tell though nothing has happened."""

    LOAD = "how busy the server is"
    ALIVE = "that it lives"


class NoteQueue:
    """Notes of one session that wait to be sent.

    When a server has said nothing for half a second, it says that it lives: the trainer is soon
    told then that it does not. A note is as good a sign. Each server of a small run tells its load
    each second; of a large one it does so less often, so that the trainer reads no more of them
    than it can use. Who hears nothing from the trainer says that with its load, and does so each
    second.

    A server may be fast and its road onward slow, or the servers beyond it overloaded. Then it
    takes microbatch after microbatch whose gradients do not return. So it measures the time from
    the end of a forward until its gradient is here, and tells it with each receipt. The oldest
    that is still on its way counts too, because of a road that is shut nothing comes back that
    could be measured.
    """

    def __init__(
        self, now_s: float, notes_max: int = NOTES_MAX, alive_every_s: float = ALIVE_S
    ) -> None:
        self._notes: deque[Message] = deque()
        self._notes_max = notes_max
        self._look_due_s = self._load_due_s = now_s + LOOK_EVERY_S
        self._alive_every_s = alive_every_s
        self._alive_due_s = now_s + alive_every_s
        self._told_unheard = False
        """The last load said that nothing comes from the trainer; the next one takes it back."""

    def add(self, note: Message) -> None:
        """Take a note; the caller then sends what `take` gives."""
        if len(self._notes) >= self._notes_max:
            raise LinkLost("the trainer does not read this server's notes")
        self._notes.append(note)

    def take(self, now_s: float) -> Message | None:
        """The note to send now; None if there is none."""
        if not self._notes:
            return None
        self._alive_due_s = now_s + self._alive_every_s
        return self._notes.popleft()

    def next_deadline_s(self) -> float:
        """Time to ask whether something is due."""
        return min(self._look_due_s, self._alive_due_s)

    def looks(self, now_s: float) -> bool:
        """Return whether a second has passed since the last look; asked before `due`."""
        return now_s >= self._look_due_s

    def due(self, now_s: float, members: int, unheard_s: float) -> SignOfLife | None:
        """The news to tell now, if there is no note; the next time is a period later.

        `members`: how many the run has. `unheard_s`: for how long nothing came from the trainer.
        """
        if now_s < self.next_deadline_s():
            return None
        if now_s >= self._look_due_s:
            self._look_due_s = now_s + LOOK_EVERY_S
            unheard = unheard_s >= SILENCE_S
            if unheard or self._told_unheard or now_s >= self._load_due_s:
                self._told_unheard = unheard
                self._load_due_s = now_s + load_every_s(members) - SLACK_S
                self._alive_due_s = now_s + self._alive_every_s
                return SignOfLife.LOAD
        if now_s < self._alive_due_s:
            return None
        self._alive_due_s = now_s + self._alive_every_s
        return SignOfLife.ALIVE


class GradientReturns:
    """The microbatches that one server has sent onward; as many as it holds inputs of."""

    def __init__(self) -> None:
        self._took_s = Ema(SMOOTHING)
        self._away: dict[Key, float] = {}
        """Time of each departure; the oldest first."""

    @property
    def away(self) -> Mapping[Key, float]:
        """Return the time of each departure; the oldest first."""
        return self._away

    def left(self, key: Key, now_s: float) -> None:
        """Its forward is computed here."""
        self._away[key] = now_s

    def on_return(self, key: Key, now_s: float) -> None:
        """Its gradient is here."""
        left_s = self._away.pop(key, None)
        if left_s is not None:
            self._took_s.add(max(0.0, now_s - left_s))

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Their gradients will not come; None: none will."""
        for key in tuple(self._away) if keys is None else keys:
            self._away.pop(key, None)

    def usual_s(self, now_s: float) -> float:
        """The time that a gradient takes at present; 0 while nothing is known."""
        oldest_s = next(iter(self._away.values()), now_s)
        return max(self._took_s.value or 0.0, now_s - oldest_s, 0.0)
