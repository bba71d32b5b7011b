"""The chain of decided records: what may follow what, and what to do when two exist.

Units:   heights count records, versions count commits. They differ after a BACK or a VOTERS.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage, PeerError
from p2pswarm.run.chain.record import (
    DIGEST_BYTES,
    MEMORY_BYTES,
    NO_DIGEST,
    QUARANTINED,
    CommitRecord,
    RecordKind,
    VoterId,
    authentic,
    digest,
    term_of,
)
from p2pswarm.run.messages.field_limits import GROUP_MAX, VOTERS_MAX
from p2pswarm.settings.codec_ladder import NO_CHOICE, CodecChoices

WINDOW = 16_384  # records whose digests stay in memory, about 5 MB; no BACK reaches further
NOBODY = bytes([QUARANTINED])
ASIDE = bytes(place == QUARANTINED for place in range(256))  # a table for bytes.translate
GROWTH = 2  # voters that one record adds or removes, so that their number stays odd


Digests = tuple[bytes, ...]
CodecTable = tuple[bytes, ...]
"""For each stage, the codes of the boundary above it; empty: as the manifest says."""


class BrokenRecord(BadMessage):
    """A record that cannot follow the one before it."""


class Fork(PeerError):
    """Two different records were decided in one place: somebody lied, or a voter forgot."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """All that the next record is checked against."""

    height: int
    """How many records are decided."""
    digest: bytes
    """Of the last record; zeros if there is none."""
    version: int
    """Of the weights."""
    term: int
    """Of the last record."""
    voters: tuple[VoterId, ...]
    trainers: tuple[bytes, ...]
    saved: int
    """The newest version of which every stage has a checkpoint."""

    @classmethod
    def of(cls, record: CommitRecord) -> "ChainHead":
        """The head that `record` makes."""
        return cls(
            record.height + 1,
            digest(record),
            record.version,
            record.term,
            record.voters,
            record.trainers,
            record.saved,
        )


@dataclass(frozen=True, slots=True)
class Genesis:
    """What a run's first record is checked against, and what all of its records have in common."""

    run: bytes
    stages: int
    microbatches: int
    """Of one step."""
    trainers: tuple[bytes, ...]
    """Who may lead before there is a record: in a new run, its founder alone."""
    voters: tuple[VoterId, ...]
    """Who votes on the first record: in a new run, its founder alone."""
    version: int = 0
    """Of the weights that the run begins with: those of a checkpoint, if it goes on from one."""
    checkpoint: bytes = NO_DIGEST
    """The digest of that checkpoint's manifest, which the first record names as `prev`."""
    codecs: CodecChoices = NO_CHOICE
    """Records choose among them."""
    tokens: int = 0
    """Of one step, of which each record counts the targets; 0: all are, and none is counted."""

    @classmethod
    def founded(
        cls,
        run: bytes,
        founder: bytes,
        stages: int,
        microbatches: int,
        codecs: CodecChoices = NO_CHOICE,
        tokens: int = 0,
    ) -> "Genesis":
        """A new run. The founder's file has a memory that all can tell from the run's id.

        So only who makes the run may begin that file; a founder that lost it begins another.
        """
        voters = (VoterId(founder, run[:MEMORY_BYTES]),)
        trainers = (founder,)
        return cls(run, stages, microbatches, trainers, voters, codecs=codecs, tokens=tokens)

    def after(self, version: int, checkpoint: bytes) -> "Genesis":
        """The same for a run that goes on from a checkpoint."""
        return replace(self, version=version, checkpoint=checkpoint)

    def head(self) -> ChainHead:
        """The head of an empty chain."""
        version = self.version
        return ChainHead(0, self.checkpoint, version, 0, self.voters, self.trainers, version)


def check_next(genesis: Genesis, head: ChainHead, record: CommitRecord) -> None:
    """Raise BrokenRecord unless `record` may follow `head`; its signature is not looked at."""
    for wrong, what in (
        (record.run != genesis.run, "it is of another run"),
        (record.height != head.height, f"it stands at {record.height}, not {head.height}"),
        (record.prev != head.digest, "it follows another record"),
        (record.term < head.term, f"its term {record.term} is below {head.term}"),
        (record.voters_before != head.voters, "it names other voters of the record before"),
        (record.coordinator not in head.trainers, "its coordinator is no trainer of the run"),
        (record.coordinator not in record.trainers, "it shuts its own coordinator out"),
        (len(set(record.trainers)) < len(record.trainers), "it names a trainer twice"),
        (not may_change(head.voters, record.voters), "its voters change by too many"),
        (len(record.stages) != genesis.stages, f"it has {len(record.stages)} stages"),
    ):
        if wrong:
            raise BrokenRecord(f"{record.name()}: {what}")
    if record.kind == RecordKind.COMMIT:
        _check_commit(genesis, head, record)
    elif record.kind == RecordKind.BACK:
        _check_back(head, record)
    else:
        _check_voters(head, record)


def may_change(before: tuple[VoterId, ...], after: tuple[VoterId, ...]) -> bool:
    """Return whether the next record may name the voters `after`.

    Their number is 1, 3 or 5: an even number survives no more losses than one voter fewer would.
    So a record keeps them, replaces one, adds two, or removes two.
    """
    kept = set(before) & set(after)
    added, removed = len(after) - len(kept), len(before) - len(kept)
    odd = len(after) % 2 == 1 and len(set(after)) == len(after) <= VOTERS_MAX
    return odd and (added, removed) in ((0, 0), (1, 1), (GROWTH, 0), (0, GROWTH))


def _check_commit(genesis: Genesis, head: ChainHead, record: CommitRecord) -> None:
    count = genesis.microbatches
    for wrong, what in (
        (record.step != head.version, f"it is of step {record.step}, not {head.version}"),
        (record.count != count, f"it counts {record.count} microbatches, not {count}"),
        (record.first != record.step * count, f"its microbatches begin at {record.first}"),
        (term_of(record.generation) != record.term, "its generation is of another term"),
        (not head.saved <= record.saved <= record.step, f"it says {record.saved} is saved"),
    ):
        if wrong:
            raise BrokenRecord(f"{record.name()}: {what}")
    peers: set[bytes] = set()
    for number, stage in enumerate(record.stages):
        members = stage.members
        peers.update(member.peer for member in members)
        last_holder = max(stage.holders.replace(NOBODY, b""), default=0)
        for wrong, what in (
            (not 1 <= len(members) <= GROUP_MAX, f"{len(members)} members"),
            (len(stage.holders) != record.count, f"{len(stage.holders)} microbatches counted"),
            (last_holder >= len(members), "a count of a member it lacks"),
            (len(stage.gradient) != DIGEST_BYTES, "no digest of its gradient"),
            (any(term_of(m.incarnation) != record.term for m in members), "a life of another term"),
        ):
            if wrong:
                raise BrokenRecord(f"{record.name()}: stage {number} has {what}")
    if len({stage.holders.translate(ASIDE) for stage in record.stages}) > 1:
        what = "it sets a microbatch aside in one stage and counts it in another"
        raise BrokenRecord(f"{record.name()}: {what}")
    allowed = genesis.codecs.allowed
    for number, stage in enumerate(record.stages):
        if stage.codecs and not (allowed and stage.codecs in allowed[number]):
            what = f"it chooses codecs {stage.codecs.hex()} above stage {number}"
            raise BrokenRecord(f"{record.name()}: {what}, which the run does not allow")
    if len(peers) < sum(len(stage.members) for stage in record.stages):
        raise BrokenRecord(f"{record.name()}: it names a member twice")
    _check_targets(genesis, record)


def _check_targets(genesis: Genesis, record: CommitRecord) -> None:
    """A step has no more targets than tokens, and they bound the factor of its sums."""
    *others, last = record.stages
    targets = last.targets
    counts = genesis.tokens > 0
    per_target = genesis.tokens / targets if targets else float(not counts)
    for wrong, what in (
        (any(stage.targets is not None for stage in others), "a stage below the last has targets"),
        (counts != (targets is not None), f"it counts {targets} targets"),
        (
            counts and (targets or 0) > genesis.tokens,
            f"{targets} targets of {genesis.tokens} tokens",
        ),
        (record.scale > per_target, f"it scales by {record.scale:g}, over {per_target:g}"),
    ):
        if wrong:
            raise BrokenRecord(f"{record.name()}: {what}")


def _check_back(head: ChainHead, record: CommitRecord) -> None:
    for wrong, what in (
        (record.step > head.version, f"it goes back to {record.step} from {head.version}"),
        (record.saved > record.step, f"it says {record.saved} is saved"),
        (_commits(record), "it goes back and commits at once"),
        (_counts(record), "it counts what it ends"),
    ):
        if wrong:
            raise BrokenRecord(f"{record.name()}: {what}")


def _check_voters(head: ChainHead, record: CommitRecord) -> None:
    for wrong, what in (
        (record.step != head.version, f"it is of version {record.step}, not {head.version}"),
        (record.saved != head.saved, f"it says {record.saved} is saved"),
        (_commits(record), "it changes the voters and commits at once"),
        (_counts(record), "it counts, and changes the voters only"),
        (any(s.state != NO_DIGEST for s in record.stages), "it names a state of the weights"),
    ):
        if wrong:
            raise BrokenRecord(f"{record.name()}: {what}")


def _commits(record: CommitRecord) -> bool:
    """Return whether it has a number that only the commit of a step has."""
    return any((record.count, record.first, record.generation, record.scale))


def _counts(record: CommitRecord) -> bool:
    """Return whether it says of a stage who added what or how much, or chooses codecs."""
    return any(
        stage.members
        or stage.holders
        or stage.gradient
        or stage.codecs
        or stage.targets is not None
        for stage in record.stages
    )


class Chain:
    """The decided records, as far as the next ones are checked against them.

    A head is what the next record is checked against. `check_next` is the whole rule for one
    record; a `Chain` adds what takes more than the record before: where a BACK may lead, and
    whether a record that comes again is the same one. Two different records in one place are a
    fork: it is named, and never merged.
    """

    def __init__(self, genesis: Genesis) -> None:
        self.genesis = genesis
        self.head = genesis.head()
        """What the next record is checked against."""
        self.last: CommitRecord | None = None
        """The last decided record but for those of voters: what the newest version was made by."""
        self.era = 0
        """How often the run has gone back; what a former era made is in no weights any more."""
        self._digests: deque[bytes] = deque(maxlen=WINDOW)
        self._states: dict[int, bytes] = {}
        self._codecs: dict[int, CodecTable] = {}
        """By step, the codes that its COMMIT names, if it names any."""

    def codecs(self, step: int) -> CodecTable:
        """The codes that hold for a step: those of a COMMIT so many steps before.

        Empty: as the manifest says. So it is in the first steps of a chain.
        """
        return self._codecs.get(step - self.genesis.codecs.after, ())

    @property
    def chosen(self) -> tuple[CodecTable, ...]:
        """The codes of all steps that are chosen for, from the next one on."""
        version = self.head.version
        return tuple(map(self.codecs, range(version, version + self.genesis.codecs.after)))

    def append(self, record: CommitRecord) -> bool:
        """Add the next record; False if it is there already.

        Raises BrokenRecord or Fork, and changes nothing then. It trusts that the record is decided:
        whoever calls knows that from a later record, or from a majority.
        """
        if record.height < self.head.height:
            ours = self.digest_at(record.height)
            if ours is not None and ours != digest(record):
                raise Fork(
                    f"two records decide place {record.height} of the run: {ours.hex()[:8]} here, "
                    f"and {record.name()}; keep all files, and go on from one of them as a new run"
                )
            return False
        self.check(record)
        self.head = ChainHead.of(record)
        self._digests.append(self.head.digest)
        if record.kind == RecordKind.VOTERS:
            return True
        self.last = record
        if record.kind == RecordKind.COMMIT:
            self._states[record.step] = _states_digest(record)
            self._states.pop(record.step - WINDOW, None)
            if any(table := tuple(stage.codecs for stage in record.stages)):
                before = self._codecs.get(record.step - 1)
                self._codecs[record.step] = before if before == table else table  # one in memory
            self._codecs.pop(record.step - WINDOW - self.genesis.codecs.after, None)
        else:
            self.era += 1
            self._states.setdefault(record.step, _states_digest(record))
            # the version that a BACK leads to stays what it was; those after it are made anew
            self._states = {v: d for v, d in self._states.items() if v <= record.step}
            self._codecs = {step: t for step, t in self._codecs.items() if step < record.step}
        return True

    def check(self, record: CommitRecord) -> None:
        """Raise BrokenRecord unless `record`, with its signature, may come next."""
        check_next(self.genesis, self.head, record)
        if not authentic(record):
            raise BrokenRecord(f"{record.name()}: its signature is wrong")
        if record.kind == RecordKind.VOTERS:
            return
        known = self._states.get(record.step)
        newest = record.step == self.head.version  # nobody has named its state yet
        if not (known is None and newest) and known != _states_digest(record):
            raise BrokenRecord(f"{record.name()}: version {record.step} was another one, or is old")

    def digest_at(self, height: int) -> bytes | None:
        """The digest of the record at `height`; None if it is not decided, or too long ago."""
        place = height - self.head.height + len(self._digests)
        return self._digests[place] if 0 <= place < len(self._digests) else None

    def own(self, records: Iterable[CommitRecord]) -> Iterator[CommitRecord]:
        """Those that are in this chain, up to the first that is not.

        A file may have a rival that was accepted, while the decided one is on its way to the disk.
        """
        for record in records:
            if self.digest_at(record.height) not in (None, digest(record)):
                return
            yield record


def _states_digest(record: CommitRecord) -> bytes:
    return hashlib.sha256(b"".join(stage.state for stage in record.stages)).digest()


class Branch:
    """The versions of the weights that lead to the newest record of a checked chain.

    A run that goes back and on again makes a version twice, with other bits in it. A checkpoint of
    the first time is of a branch that has ended: its state is sound, and is not of this run.
    """

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
