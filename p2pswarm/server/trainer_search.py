"""Whom a server asks for its stage: the trainers that may coordinate the run, in turn.

One of a run's trainers coordinates it. The others stand by: they do not assign stages, and say who
does. A server asks one after another, at once; it pauses when all have been asked. What the DHT or
a standby names anew is asked next.

Errors:  none; a list that a peer makes too long loses the ones that were found first.
"""

from collections.abc import Sequence

from p2pswarm.ids import Contact

TRAINERS_MAX = 8  # a run has up to five voters; a peer that names ever new ones is not followed


class TrainerSearch:
    """The known trainers of one run; the next to ask stands first."""

    def __init__(self, trainers: Sequence[Contact]) -> None:
        self._trainers = list(trainers[:TRAINERS_MAX])
        self._asked: list[Contact] = []
        """Those that were asked since the last pause."""

    @property
    def present(self) -> Contact:
        """The trainer that was asked last or, before that, the first to ask."""
        return self._asked[-1] if self._asked else self._trainers[0]

    @property
    def others(self) -> bool:
        """Whether there is another trainer to ask before the next pause."""
        return len(self._asked) < TRAINERS_MAX and any(t not in self._asked for t in self._trainers)

    def ask(self) -> Contact:
        """The trainer to ask now; after a pause, all may be asked again."""
        if not self.others:
            self._asked = []
        trainer = next(t for t in self._trainers if t not in self._asked)
        self._asked.append(trainer)
        return trainer

    def coordinates(self) -> None:
        """The trainer that was asked coordinates the run: it is asked first the next time."""
        present = self.present
        self._trainers.remove(present)
        self._trainers.insert(0, present)
        self._asked = []

    def found(self, trainers: Sequence[Contact]) -> None:
        """These may coordinate, as the DHT or a standby says: ask them before the others."""
        for trainer in reversed(trainers):
            same = [t for t in self._trainers if t == trainer or _moved(t, trainer)]
            self._trainers = [trainer, *(t for t in self._trainers if t not in same)]
        self._trainers = self._trainers[:TRAINERS_MAX]


def _moved(old: Contact, new: Contact) -> bool:
    """Whether two contacts are one peer at two addresses."""
    return old.peer is not None and old.peer == new.peer
