"""What holds in every run, whatever goes wrong: rules that are told what happens.

Units:   virtual seconds; microbatches by their global number.
Errors:  none; a breach is a text.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2pswarm.run.chain.record import QUARANTINED, CommitRecord, term_of
from p2pswarm.run.member_view import Incarnation


class Contributions:
    """Who holds which microbatch in its sum: of the living, at most one in each stage.

    Members are living together if one coordinator says so: lives of two terms are in no one step.
    """

    def __init__(self) -> None:
        self._holders: dict[tuple[int, int], list[Incarnation]] = {}

    def counted(
        self,
        stage: int,
        microbatch: int,
        by: Incarnation,
        alive: Callable[[Incarnation], bool],
    ) -> str | None:
        """A member adds a microbatch; returns the breach if another living one holds it."""
        holders = self._holders.setdefault((stage, microbatch), [])
        together = [one for one in holders if term_of(one.number) == term_of(by.number)]
        living = [one for one in together if one != by and alive(one)]
        again = by in holders
        holders.append(by)
        if not alive(by):
            return None
        if living:
            return f"microbatch {microbatch}, stage {stage}: held by {living[0]} and by {by}"
        if again:
            return f"microbatch {microbatch}, stage {stage}: {by} counts it twice"
        return None

    def kept(self, stage: int, first: int, former: Incarnation, heir: Incarnation) -> None:
        """A server goes on with its sum of the step that begins at microbatch `first`.

        What it had stays its former life's, too: if it never hears of the heir, it says so again.
        """
        for (where, microbatch), holders in self._holders.items():
            if where == stage and microbatch >= first and former in holders:
                holders.append(heir)

    def decided(self, record: CommitRecord) -> str | None:
        """A step is decided; returns the breach if a sum in it is not what the record says."""
        for stage, commit in enumerate(record.stages):
            members = [Incarnation(one.peer, one.incarnation) for one in commit.members]
            for place, named in enumerate(commit.holders):
                microbatch = record.first + place
                held = self._holders.get((stage, microbatch), ())
                holding = [one for one in members if one in held]
                if named == QUARANTINED:
                    continue  # it counts as zeros, in whose sum ever
                if holding != [members[named]] or held.count(members[named]) != 1:
                    return (
                        f"{record.name()}: microbatch {microbatch}, stage {stage} is in the sums "
                        f"of {holding}, and the record says {members[named]}"
                    )
        return None

    def forget(self, before: int) -> None:
        """Forget microbatches before this one: their steps are over."""
        self._holders = {key: held for key, held in self._holders.items() if key[1] >= before}


class Records:
    """What nodes know to be decided: one record a height, and no node's chain ever shrinks."""

    def __init__(self, decided: Callable[[CommitRecord], str | None] = lambda _record: None):
        """`decided` is told of each record once, in order; it returns a breach."""
        self.records: list[CommitRecord] = []
        """All that is known to be decided."""
        self._decided = decided
        self._heights: dict[object, int] = {}
        self._read: dict[object, int] = {}
        self._newest = 0

    def seen(
        self, node: object, height: int, read: Callable[[int, int], Iterable[CommitRecord]]
    ) -> str | None:
        """Look at the chain of a process, `height` records long; returns the breach.

        `read` gives the records from one height to another, as far as they are there.
        """
        known = self._heights.get(node, 0)
        self._heights[node] = height
        if height < known:
            return f"a chain of {known} records has {height}"
        for record in read(self._read.get(node, 0), height):
            if wrong := self._take(record):
                return wrong
            self._read[node] = record.height + 1  # the newest may be on its way to the disk
        return None

    def applied(self, stage: int, version: int) -> str | None:
        """A server holds weights; returns the breach if no record has decided them."""
        if version > self._newest:
            return f"stage {stage} has version {version}; {self._newest} steps are decided"
        return None

    def _take(self, record: CommitRecord) -> str | None:
        if record.height < len(self.records):
            same = record == self.records[record.height]
            return None if same else f"{record.name()} and {self.records[record.height].name()}"
        if record.height > len(self.records):
            return f"{record.name()} is decided, and one before it is nowhere"
        if self.records and record.term < self.records[-1].term:
            return f"{record.name()} follows one of term {self.records[-1].term}"
        self.records.append(record)
        self._newest = max(self._newest, record.version)
        return self._decided(record)


class Digests:
    """Every replica of one stage and version has one digest."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], bytes] = {}

    def seen(self, stage: int, version: int, digest: bytes) -> str | None:
        """A server holds weights; returns the breach if others of that version differ."""
        if self._seen.setdefault((stage, version), digest) != digest:
            return f"stage {stage}, version {version}: two replicas differ"
        return None


@dataclass(slots=True)
class Stalls:
    """How long no step was done while a trainer and servers could do one.

    A trainer runs, reaches enough voters and a server of every stage, and they reach each other.
    """

    longest_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    """When the run began and when each step was done."""
    _dark: bool = False
    _was_dark: bool = False

    def reachable(self, every_stage: bool) -> None:
        """Whether a trainer reaches a path of living servers through the stages, from now on."""
        self._dark = not every_stage
        self._was_dark = self._was_dark or self._dark

    def step_done(self, now_s: float) -> None:
        """A step is done, or the first one begins."""
        if self.ends_s and not self._was_dark:
            self.longest_s = max(self.longest_s, now_s - self.ends_s[-1])
        self.ends_s.append(now_s)
        self._was_dark = self._dark
