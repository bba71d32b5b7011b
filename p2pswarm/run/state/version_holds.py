"""Which parts of a version must still be read before a commit may change them.

Units:   a part is one piece of one tensor of the state (`tensors/state_tree.py`).
Errors:  KeyError for a part that is read twice.
"""

from dataclasses import dataclass, field

WINDOW_PARTS = 48  # 96 MiB of float32: what is read while a disk takes 0.2 s at 0.5 GB/s

Part = tuple[int, int]
"""(tensor, piece): 0 weights, 1 first moments, 2 second moments."""


@dataclass(eq=False, slots=True)
class Hold:
    """One reader of one version."""

    version: int
    unread: set[Part]
    saved: dict[Part, memoryview] = field(default_factory=dict)
    """Parts that a commit has changed since; each is forgotten when it is read."""
    passed: bool = False
    """The memory is of a later version now."""
    broken: bool = False
    """It was too slow: a commit did not wait for it any longer."""


class VersionHolds:
    """The holds of one stage's state.

    Who needs a whole version (a checkpoint) holds it, and reads part after part while the next
    step is computed, which changes nothing. A commit comes before the last part is read: it first
    saves the parts that are unread, if they fit into the window, and else waits until readers have
    caught up. So no more than a window of copies exists, and a fast reader costs nothing at all.

    Who takes pieces of any version (a newcomer) needs no hold.
    """

    def __init__(self, parts: frozenset[Part], window: int = WINDOW_PARTS) -> None:
        """`window`: how many saved parts there may be at any time, for all holds together."""
        self._parts = parts
        self._window = window
        self._holds: list[Hold] = []

    def hold(self, version: int) -> Hold:
        """Hold the version that the memory is of."""
        hold = Hold(version, set(self._parts))
        self._holds.append(hold)
        return hold

    def release(self, hold: Hold) -> None:
        """Forget a reader, finished or not."""
        self._holds.remove(hold)
        hold.saved.clear()

    def read(self, hold: Hold, part: Part) -> memoryview | None:
        """A part is being taken: what was saved of it; None if the memory has it still."""
        hold.unread.remove(part)
        return hold.saved.pop(part, None)

    @property
    def must_wait(self) -> bool:
        """Return whether a commit waits for readers: what is unread is more than the window."""
        saved = {id(data) for hold in self._holds for data in hold.saved.values()}
        return len(self.to_save()) + len(saved) > self._window

    def to_save(self) -> list[Part]:
        """The parts to copy before the memory changes."""
        return sorted({part for hold in self._present() for part in hold.unread})

    def save(self, part: Part, data: memoryview) -> None:
        """Keep a copy of a part for all who have not read it."""
        for hold in self._present():
            if part in hold.unread:
                hold.saved[part] = data

    def changed(self) -> None:
        """The memory is of another version from now on."""
        for hold in self._present():
            hold.passed = True

    def break_slow(self) -> None:
        """A commit waits no longer: the readers with unread parts lose their version."""
        for hold in self._holds:
            if hold.unread:
                hold.broken = True
                hold.saved.clear()

    def _present(self) -> list[Hold]:
        return [hold for hold in self._holds if not hold.passed and not hold.broken]
