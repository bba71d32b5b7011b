"""Branch: the version of the weights that each record made, as far as it stands.

A run that goes back and on again makes a version twice, with other bits in it. A checkpoint of the
first time is of a branch that has ended: its state is sound, and is not the state of this run.

Units:   versions count commits.
"""

from p2pswarm.run.chain.record import CommitRecord, RecordKind, digest

Digests = tuple[bytes, ...]


class Branch:
    """The versions that lead to the newest record."""

    def __init__(self) -> None:
        self._made: dict[int, bytes] = {}
        self._states: dict[int, Digests] = {}

    def append(self, record: CommitRecord) -> None:
        """Take the next record."""
        if record.kind == RecordKind.VOTERS:
            return  # it makes no version, and names no state
        states = tuple(stage.state for stage in record.stages)
        if record.kind == RecordKind.BACK:
            self._made = {v: made for v, made in self._made.items() if v <= record.step}
            self._states = {v: known for v, known in self._states.items() if v <= record.step}
            self._states.setdefault(record.step, states)
        else:
            self._states[record.step] = states
            self._made[record.version] = digest(record)

    def made(self, version: int) -> bytes | None:
        """The digest of the record that made a version; None for the first, or if it is unknown."""
        return self._made.get(version)

    def states(self, version: int) -> Digests | None:
        """The digests of the stages' states; None of the newest version, which nobody named yet."""
        return self._states.get(version)
