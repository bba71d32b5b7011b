"""Which trainer a standby asks next, to find the one that coordinates the run.

Units:   seconds.
Errors:  none.
"""

from collections.abc import Sequence

from p2pswarm.base.ids import Contact

PAUSE_S = 0.25  # after all known trainers were asked
HINTS_MAX = 4  # in a row: trainers that name each other must not send us round in circles


class StandbySearch:
    """The trainers in turn; one that was named as the coordinator is asked at once."""

    def __init__(self) -> None:
        self._asked: list[bytes] = []
        self._hint: Contact | None = None
        self._hints = 0

    def hint(self, coordinator: Contact | None) -> None:
        """A trainer names the coordinator, or is it itself."""
        if coordinator is not None and self._hints < HINTS_MAX:
            self._hint = coordinator
            self._hints += 1

    def found(self) -> None:
        """The coordinator was found: whoever is asked next was asked by nobody."""
        self._asked.clear()
        self._hints = 0

    def ask(self, known: Sequence[Contact]) -> Contact | None:
        """Whom to ask now; None after all were asked: pause then."""
        hint, self._hint = self._hint, None
        if hint is not None:
            return hint
        for contact in known:
            if contact.peer is not None and contact.peer.raw not in self._asked:
                self._asked.append(contact.peer.raw)
                return contact
        self.found()
        return None
