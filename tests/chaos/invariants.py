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
    """The longest time in which a step was possible without a break, and none was done.

    docs/chaos.md says when a step is possible. What ends a time in which none was possible begins a
    new one: what is counted from then on includes finding each other again.
    """

    longest_s: float = 0.0
    ends_s: list[float] = field(default_factory=list)
    """When the run began and when each step was done."""
    _version: int = 0
    _from_s: float | None = None
    """Since when a step has been possible and none was done; None: none is possible, or the run has
    not begun."""

    def on_possible(self, now_s: float, *, possible: bool) -> None:
        """A step is possible from now on, or not."""
        if not self.ends_s:
            return
        if possible and self._from_s is None:
            self._from_s = now_s
        elif not possible and self._from_s is not None:
            self._count(now_s)
            self._from_s = None

    def on_begin(self, now_s: float) -> None:
        """The run begins; a successor says it again, if no step is decided."""
        if not self.ends_s:
            self.on_step(now_s)

    def on_version(self, version: int, now_s: float) -> None:
        """A step is done: it has made this version."""
        if version != self._version:
            self._version = version
            self.on_step(now_s)

    def on_leader(self, version: int, now_s: float) -> None:
        """A trainer leads: what it decided just before its process ended, nobody may have said."""
        if version > self._version:
            self.on_version(version, now_s)

    def on_step(self, now_s: float) -> None:
        if self._from_s is not None:
            self._count(now_s)
        if self._from_s is not None or not self.ends_s:
            self._from_s = now_s
        self.ends_s.append(now_s)

    def _count(self, now_s: float) -> None:
        assert self._from_s is not None, "a step was possible"
        self.longest_s = max(self.longest_s, now_s - self._from_s)
