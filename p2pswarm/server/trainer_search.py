"""Whom a server asks for its stage: the trainers that may coordinate the run, in turn.

One of a run's trainers coordinates it. The others stand by: they do not assign stages, and say who
does. A server asks one after another, at once; it pauses when all have been asked. What the DHT or
a standby names anew is asked next; the coordinator that was lost is asked last. A trainer that has
been reached is given time: it answers when its step allows, and may be the one that leads though
the DHT does not name it.

Errors:  none; a list that a peer makes too long loses the ones that were found first.
"""

from collections.abc import Sequence

from p2pswarm.base.ids import Contact
from p2pswarm.run.messages.types import TRAINERS_MAX

REACHED_S = 15.0  # then the link to one that is dead has ended
NEVER_S = float("-inf")


class TrainerSearch:
    """The known trainers of one run; the next to ask stands first."""

    def __init__(self, trainers: Sequence[Contact]) -> None:
        self._trainers: list[Contact] = []
        self.found(trainers)
        self._asked: list[Contact] = []
        """Those that were asked since the last pause."""
        self._reached_s = NEVER_S

    @property
    def present(self) -> Contact:
        """The trainer that was asked last or, before that, the first to ask."""
        return self._asked[-1] if self._asked else self._trainers[0]

    @property
    def others(self) -> bool:
        """Whether there is another trainer to ask before the next pause."""
        return len(self._asked) < TRAINERS_MAX and any(t not in self._asked for t in self._trainers)

    @property
    def several(self) -> bool:
        """Whether more than one trainer is known."""
        return len(self._trainers) > 1

    def beside(self, trainer: Contact) -> list[Contact]:
        """The other trainers that are known."""
        return [t for t in self._trainers if not _same(t, trainer)]

    def find(self, peer: bytes) -> Contact | None:
        """Where a trainer is dialled, if that is known."""
        return next((t for t in self._trainers if t.peer is not None and t.peer.raw == peer), None)

    def ask(self) -> Contact:
        """The trainer to ask now; after a pause, all may be asked again."""
        if not self.others:
            self._asked = []
        trainer = next(t for t in self._trainers if t not in self._asked)
        self._asked.append(trainer)
        self._reached_s = NEVER_S
        return trainer

    def reached(self, now_s: float) -> None:
        """The trainer that was asked has taken the stream."""
        self._reached_s = now_s

    def has_reached(self, now_s: float) -> bool:
        """Whether the trainer that was asked lives, and is to be given time to answer."""
        return now_s < self._reached_s + REACHED_S

    def coordinates(self) -> None:
        """The trainer that was asked coordinates the run: it is asked first the next time.

        Where it was asked, it answered. Meanwhile somebody may have named it at another address.
        """
        present, self._asked = self.present, []
        self.found([present])

    def lost(self) -> None:
        """The coordinator is gone, as it seems: the others are asked before it."""
        present = self._trainers.pop(0)
        self._trainers.append(present)

    def told(self, trainers: Sequence[Contact]) -> None:
        """The coordinator says who may lead after it; it stays the first."""
        first = self._trainers[0]
        self.found([first, *(t for t in trainers if not _same(t, first))])

    def found(self, trainers: Sequence[Contact]) -> None:
        """These may coordinate, as the DHT or a standby says: ask them before the others."""
        for trainer in reversed(trainers):
            self._trainers = [trainer, *self.beside(trainer)]
        self._trainers = self._trainers[:TRAINERS_MAX]


def _same(one: Contact, other: Contact) -> bool:
    """Whether two contacts are one peer, perhaps at two addresses."""
    return one == other or (one.peer is not None and one.peer == other.peer)
