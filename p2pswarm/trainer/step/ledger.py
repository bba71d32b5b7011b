"""A ledger of which living member counts which microbatch, by stage: it proves a step complete."""

from collections.abc import Sequence
from enum import Enum

from p2pswarm.run.chain.record import QUARANTINED
from p2pswarm.run.member_view import Incarnation


class CountResult(Enum):
    """The outcome of a member's report that it has counted a microbatch."""

    NEW = "counted for the first time"
    LAST = "counted for the first time, in the last stage that lacked it"
    KNOWN = "the same member has reported it before"
    CLASH = "another living member counts it already, or it was set aside"
    STRAY = "not a microbatch of this step, or not counted"
    CHECK = "it is a spot check, which nobody counts, and its gradient has come back"


class StepLedger:
    """The contributions to one step, as the trainer knows them.

    A step may be committed when, for every stage, exactly one living incarnation has counted each
    microbatch. The entries of an incarnation that ends are deleted, and their work is done again.
    A microbatch that was set aside is counted by nobody, in no stage.
    """

    def __init__(self, first: int, microbatches: int, stages: int) -> None:
        if microbatches < 0 or stages < 1:
            raise ValueError(f"no ledger for {microbatches} microbatches of {stages} stages")
        self._first = first
        self._holder: list[list[Incarnation | None]] = [
            [None] * stages for _ in range(microbatches)
        ]
        self._held: dict[Incarnation, list[tuple[int, int]]] = {}
        """The same by holder: indices and stages, in the order in which they were counted."""
        self._left = [stages] * microbatches
        """Number of stages that have not counted each microbatch."""
        self._left_in_all = microbatches * stages
        self._aside: set[int] = set()
        """The indices of the microbatches that nobody is to count."""

    @property
    def size(self) -> int:
        """Return how many microbatches the step has."""
        return len(self._holder)

    @property
    def complete(self) -> bool:
        """True if every stage has counted every microbatch."""
        return self._left_in_all == 0

    def count(self, microbatch: int, stage: int, by: Incarnation) -> CountResult:
        """Enter one contribution."""
        index = microbatch - self._first
        if not 0 <= index < len(self._holder):
            return CountResult.STRAY
        if index in self._aside:
            return CountResult.CLASH
        holder = self._holder[index][stage]
        if holder is None:
            self._holder[index][stage] = by
            self._held.setdefault(by, []).append((index, stage))
            self._left[index] -= 1
            self._left_in_all -= 1
            return CountResult.NEW
        return CountResult.KNOWN if holder == by else CountResult.CLASH

    def holder(self, microbatch: int, stage: int) -> Incarnation | None:
        """Return who has counted a microbatch in a stage."""
        index = microbatch - self._first
        return self._holder[index][stage] if 0 <= index < len(self._holder) else None

    def missing(self, microbatch: int) -> tuple[int, ...]:
        """The stages that have not counted it."""
        index = microbatch - self._first
        if not self._left[index]:
            return ()
        return tuple(stage for stage, holder in enumerate(self._holder[index]) if holder is None)

    def keepers(self, microbatch: int) -> tuple[bytes, ...]:
        """By stage, who counted it below and above the stages that have not; empty: nobody.

        A stage between two that have not counted it needs its graph, so it computes. Of those
        above, only the first is reached.
        """
        missing = self.missing(microbatch)
        by = self.counted_by(microbatch)
        if not missing or not by:
            return ()
        lowest, highest = min(missing), max(missing)
        wanted = {*range(lowest), highest + 1}
        stages = len(self._holder[microbatch - self._first])
        return tuple(by[s].peer if s in by and s in wanted else b"" for s in range(stages))

    def all_counted(self, microbatch: int) -> bool:
        """Return whether every stage has counted it."""
        return not self._left[microbatch - self._first]

    def who_counted(self, microbatch: int) -> tuple[Incarnation, ...]:
        """Return who has counted it, in any stage."""
        row = self._holder[microbatch - self._first]
        return tuple(dict.fromkeys(holder for holder in row if holder is not None))

    @property
    def counting(self) -> list[Incarnation]:
        """All that have counted anything in this step."""
        return [one for one, held in self._held.items() if held]

    def counted_by(self, microbatch: int) -> dict[int, Incarnation]:
        """Return who has counted it, by stage."""
        row = self._holder[microbatch - self._first]
        return {stage: holder for stage, holder in enumerate(row) if holder is not None}

    def set_aside(self, microbatch: int) -> None:
        """Let nobody count it; whoever had counted it is void already."""
        index = microbatch - self._first
        assert not self.who_counted(microbatch), "the sums that hold it are void"
        if index not in self._aside:
            self._aside.add(index)
            self._left_in_all -= self._left[index]
            self._left[index] = 0

    def void(self, gone: Incarnation) -> tuple[int, ...]:
        """Delete all that an incarnation had counted; returns those microbatches, in order."""
        held = self._held.pop(gone, [])
        for index, stage in held:
            self._holder[index][stage] = None
            self._left[index] += 1
        self._left_in_all += len(held)
        return tuple(self._first + index for index in sorted({index for index, _ in held}))

    def fits(self, bitmap: bytes, of: Incarnation, stage: int) -> tuple[int, ...] | None:
        """Return the microbatches of a sum that were not entered yet.

        None if it cannot be the sum of that incarnation: something is missing, is not of this
        step, was set aside, or is counted by another.
        """
        bits = int.from_bytes(bitmap, "little")
        known = int.from_bytes(self.bitmap(of), "little")
        if bits >> len(self._holder) or known & ~bits:
            return None
        beyond = self.microbatches((bits & ~known).to_bytes(len(bitmap), "little"))
        rows = (microbatch - self._first for microbatch in beyond)
        if any(index in self._aside or self._holder[index][stage] for index in rows):
            return None
        return beyond

    def microbatches(self, bitmap: bytes) -> tuple[int, ...]:
        """The microbatches of a bitmap of this step, in order."""
        bits = int.from_bytes(bitmap, "little")
        return tuple(self._first + i for i in range(len(self._holder)) if bits >> i & 1)

    def hand_over(self, former: Incarnation, heir: Incarnation) -> int:
        """Enter all that an incarnation had counted for its heir; returns how much that is."""
        held = self._held.pop(former, [])
        for index, stage in held:
            self._holder[index][stage] = heir
        self._held[heir] = held
        return len(held)

    def holders(self, stage: int, group: Sequence[Incarnation]) -> bytes:
        """Return one byte a microbatch: its counter's place in `group`, or QUARANTINED."""
        place = {incarnation: index for index, incarnation in enumerate(group)}
        in_stage = (holders[stage] for holders in self._holder)
        return bytes(QUARANTINED if one is None else place[one] for one in in_stage)

    def counted_in(self, stage: int) -> int:
        """Return how many microbatches a stage has counted."""
        return sum(holders[stage] is not None for holders in self._holder)

    def stage_counted(self, stage: int) -> bool:
        """Return whether a stage has counted every microbatch."""
        return self.counted_in(stage) == len(self._holder)

    def counted_by_one(self, one: Incarnation) -> int:
        """Return how many microbatches one incarnation has counted."""
        return len(self._held.get(one, ()))

    def bitmap(self, of: Incarnation) -> bytes:
        """Return what one has counted: bit i (little-endian) is microbatch first + i."""
        bits = bytearray((len(self._holder) + 7) // 8)
        for index, _ in self._held.get(of, ()):
            bits[index // 8] |= 1 << index % 8
        return bytes(bits)
