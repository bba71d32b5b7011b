"""Checks a chain file without a line of p2pswarm: hashes, signatures, steps, and every count.

    python bench/check_chain.py FILE [DELAY [TOKENS CLIP_NORM]]

FILE is the file of a voter, of a lone trainer or of a checkpoint (docs/chain.md tells its bytes).
DELAY is the run's, 0 if it is left out: codecs that a record chooses hold so many steps later.
TOKENS is how many targets a step could have, microbatches x rows x sequence length, and CLIP_NORM
the optimizer's: with them each step's scale is computed again from its targets and its norm.
It prints {"ok": bool, "steps": n, "head": hex} and what is wrong on stderr, and exits with 0 or 1.
`steps` counts those whose work is in the weights; `head` is the hash of the last record. Records
that only changed the voters are counted on stderr, and so is each step from which on a boundary
has other codecs: by the codes of its activations and gradients, or as the manifest says.
"""

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import NamedTuple

import msgpack
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAGIC = b"PSCHAIN1"
HEADER_BYTES, PREFIX_BYTES, ENTRY_BYTES_MAX = 32, 12, 128_128
PREPARE, RECORD, PROPOSE = 81, 80, 83
COMMIT, BACK, VOTERS = 0, 1, 2
STAGE_FIELDS, CODES = 4, 2  # of a stage's part; behind them codecs, where any are chosen, and
OPTIONAL = 2  # in the last stage, where rows tell their targets, how many the step has
CLIP_EPSILON, ROUNDING = 1e-6, 1e-12
QUARANTINED = 255  # as a holder: the microbatch is not finite, and counts as zeros in all stages
TAG = b"p2pswarm-record-1:"
PEER_TAG = b"p2pswarm-peer-1:"


class Wrong(Exception):
    """The chain is not what it should be."""


class Rec(NamedTuple):
    """The fields of a record, in their order on the wire."""

    run: bytes
    prev: bytes
    term: int
    height: int
    step: int
    kind: int
    generation: int
    scale: float
    learning_rate: float
    loss: float | None
    gradient_norm: float | None
    first: int
    count: int
    stages: list
    trainers: list
    voters: list
    voters_before: list
    saved: int
    key: bytes
    signature: bytes

    @property
    def data(self) -> bytes:
        """Its encoding."""
        return msgpack.packb([RECORD, *self])

    @property
    def digest(self) -> bytes:
        """What the next record names."""
        return hashlib.sha256(self.data).digest()


def entries(data: bytes) -> list[list]:
    """The messages of the file; a torn one at the end is left out."""
    if not data.startswith(MAGIC):
        raise Wrong("it does not begin as a chain file")
    found, at = [], HEADER_BYTES
    while at < len(data):
        size = entry_size(data, at)
        if size is None:
            rest = range(at + 1, len(data))
            if len(data) - at > PREFIX_BYTES + ENTRY_BYTES_MAX or any(
                entry_size(data, i) for i in rest
            ):
                raise Wrong(f"it is damaged at byte {at}")
            print(f"the last {len(data) - at} bytes are torn", file=sys.stderr)
            break
        found.append(msgpack.unpackb(data[at + PREFIX_BYTES : at + size]))
        at += size
    return found


def entry_size(data: bytes, at: int) -> int | None:
    head = data[at : at + PREFIX_BYTES]
    if len(head) < PREFIX_BYTES:
        return None
    length = struct.unpack(">I", head[:4])[0]
    if not 1 <= length <= ENTRY_BYTES_MAX:
        return None
    body = data[at + PREFIX_BYTES : at + PREFIX_BYTES + length]
    sound = len(body) == length and hashlib.sha256(head[:4] + body).digest()[:8] == head[4:]
    return PREFIX_BYTES + length if sound else None


def newest_chain(messages: list[list]) -> list[Rec]:
    """The records from the first to the newest, each the one that the next names."""
    known: dict[bytes, Rec] = {}
    accepted, learned = None, []
    for code, *fields in messages:
        if code == PROPOSE:
            accepted = Rec(*fields[2])
            known[accepted.digest] = accepted
        elif code == RECORD:
            learned.append(Rec(*fields))
            known[learned[-1].digest] = learned[-1]
        elif code != PREPARE:
            raise Wrong(f"it has an entry of code {code}")
    refuse_forks(known, learned)
    tips = [*learned, *([accepted] if accepted else [])]
    if not tips:
        return []
    chain = [max(tips, key=lambda record: record.height)]
    while chain[-1].height:
        before = known.get(chain[-1].prev)
        if before is None:
            raise Wrong(f"the record before {chain[-1].height} is missing")
        chain.append(before)
    return chain[::-1]


def refuse_forks(known: dict[bytes, Rec], learned: list[Rec]) -> None:
    """A record that another one follows was decided, and so was one that was learned."""
    decided = {record.prev for record in known.values()} | {record.digest for record in learned}
    places: dict[int, bytes] = {}
    for digest in sorted(decided & known.keys()):
        height = known[digest].height
        if places.setdefault(height, digest) != digest:
            raise Wrong(f"a fork: two records are decided in place {height}")


def check_signature(record: Rec) -> None:
    signed = bytes([len(TAG)]) + TAG + record.data[:-66]
    try:
        Ed25519PublicKey.from_public_bytes(record.key).verify(record.signature, signed)
    except (InvalidSignature, ValueError) as error:
        raise Wrong(f"record {record.height}: a wrong signature") from error
    peer = hashlib.sha256(PEER_TAG + record.key).digest()
    if peer not in record.trainers:
        raise Wrong(f"record {record.height}: its coordinator is no trainer")


def check_link(before: Rec | None, record: Rec) -> None:
    """What the record before fixes of this one."""
    peer = hashlib.sha256(PEER_TAG + record.key).digest()
    expected = [("height", record.height, 0 if before is None else before.height + 1)]
    if before is not None:
        expected.append(("prev", record.prev, before.digest))
        expected.append(("run", record.run, before.run))
        expected.append(("voters_before", record.voters_before, before.voters))
        expected.append(("coordinator", peer in before.trainers, True))
        expected.append(("term", record.term >= before.term, True))
        expected.append(("stages", len(record.stages), len(before.stages)))
    for what, found, right in expected:
        if found != right:
            raise Wrong(f"record {record.height}: {what} is wrong")
    check_voters(record)


def check_voters(record: Rec) -> None:
    old, new = ({tuple(voter) for voter in some} for some in (record.voters_before, record.voters))
    change = len(new - old), len(old - new)
    if len(new) not in (1, 3, 5) or change not in ((0, 0), (1, 1), (2, 0), (0, 2)):
        raise Wrong(f"record {record.height}: its voters are wrong")


class Tally:
    """Who counted which microbatch in which stage, in the steps whose work is in the weights."""

    def __init__(self) -> None:
        self.steps: list[list[dict[int, bytes]]] = []
        self.states: list[list[bytes]] = []
        self.aside: list[list[int]] = []
        self.codecs: list[list[str]] = []
        self.targets: list[int | None] = []
        self.size = 0
        self.revotes = 0
        """Records that only changed the voters."""
        self.base = 0
        """The step that the chain begins with; above 0 if the run goes on from a checkpoint."""

    def add(self, record: Rec) -> None:
        """Take the next record into account."""
        if not record.height:
            self.begin(record)
        if record.kind == VOTERS:
            self.check_revote(record)
            self.revotes += 1
            return
        if record.kind == BACK and any(len(stage) != STAGE_FIELDS for stage in record.stages):
            raise Wrong(f"record {record.height}: it goes back, and chooses codecs")
        place, states = record.step - self.base, [stage[2] for stage in record.stages]
        if record.kind == BACK and (not 0 <= place <= len(self.steps) or record.count):
            raise Wrong(f"record {record.height}: it goes back to {record.step}")
        if self.states[place : place + 1] not in ([], [states]):
            raise Wrong(f"record {record.height}: version {record.step} was another one")
        if record.kind == BACK:
            del self.steps[place:], self.aside[place:], self.codecs[place:], self.targets[place:]
            self.states[place:] = [states]
            return
        self.size = self.size or record.count
        if record.kind != COMMIT or place != len(self.steps) or record.count != self.size:
            raise Wrong(f"record {record.height}: it is not step {self.version}")
        self.steps.append([self.counts(record, stage) for stage in record.stages])
        masks = [[h == QUARANTINED for h in stage[1]] for stage in record.stages]
        if any(mask != masks[0] for mask in masks):
            raise Wrong(f"record {record.height}: a microbatch is set aside in one stage only")
        self.aside.append([record.first + i for i, there in enumerate(masks[0]) if there])
        self.states[place:] = [states]
        self.codecs.append([self.chosen(record, stage) for stage in record.stages])
        self.targets.append(self.counted_targets(record))

    def chosen(self, record: Rec, stage: list) -> str:
        """The codes that a stage's part has for the boundary above it, in hexadecimal."""
        codes, targets = fields_behind(stage)
        if len(stage) > STAGE_FIELDS + OPTIONAL or type(codes) is not bytes:
            raise Wrong(f"record {record.height}: a stage has fields that no stage has")
        if len(codes) != CODES and (codes or (len(stage) > STAGE_FIELDS and targets is None)):
            raise Wrong(f"record {record.height}: its codecs are no two codes")
        return codes.hex()

    def counted_targets(self, record: Rec) -> int | None:
        """How many targets the step has; None: all tokens."""
        *others, last = [fields_behind(stage)[1] for stage in record.stages]
        if any(each is not None for each in others) or not (last is None or type(last) is int):
            raise Wrong(f"record {record.height}: its targets are not a number in the last stage")
        if self.targets and (self.targets[-1] is None) != (last is None):
            raise Wrong(f"record {record.height}: some steps count their targets, and some do not")
        return last

    def changes(self, delay: int) -> list[str]:
        """From which step on which boundary has which codecs.

        A record's hold two steps later, and with a delay of one step three.
        """
        found, before = [], [""] * (len(self.codecs[0]) if self.codecs else 0)
        for place, codes in enumerate(self.codecs):
            for stage, (now, then) in enumerate(zip(codes, before, strict=True)):
                if now != then:
                    step = self.base + place + 2 + delay
                    what = now or "as the manifest says"
                    found.append(f"step {step}: codecs above stage {stage}: {what}")
            before = codes
        return found

    def check_revote(self, record: Rec) -> None:
        """It stands between two steps, and says nothing of any."""
        numbers = record.generation, record.scale, record.first, record.count
        said = any(
            members or holders or gradient for members, holders, _, gradient, *_ in record.stages
        )
        said = said or any(len(stage) != STAGE_FIELDS for stage in record.stages)
        if any(numbers) or said or any(stage[2] != bytes(32) for stage in record.stages):
            raise Wrong(f"record {record.height}: it changes the voters, and not only them")
        if record.step != self.version:
            raise Wrong(f"record {record.height}: it is not of version {self.version}")

    def begin(self, first: Rec) -> None:
        """A chain begins at step 0, or names the checkpoint that its run goes on from."""
        if first.step and first.prev == bytes(32):
            raise Wrong(f"it is not step 0, and names no checkpoint: step {first.step}")
        if first.prev != bytes(32):
            self.base = first.step
            print(f"it begins with step {first.step} of a checkpoint", file=sys.stderr)

    @property
    def version(self) -> int:
        """Of the weights: how many steps are done."""
        return self.base + len(self.steps)

    def counts(self, record: Rec, stage: list) -> dict[int, bytes]:
        """Who counted which microbatch, in one stage of one step."""
        members, holders, *_ = stage
        peers = [peer for peer, _ in members]
        if len(holders) != record.count or len(set(peers)) < len(peers):
            raise Wrong(f"record {record.height}: a stage does not count every microbatch once")
        counted = [(record.first + i, h) for i, h in enumerate(holders) if h != QUARANTINED]
        if any(holder >= len(peers) for _, holder in counted):
            raise Wrong(f"record {record.height}: a microbatch was counted by nobody")
        return {microbatch: peers[holder] for microbatch, holder in counted}

    def check(self) -> None:
        """Each stage has every microbatch of the run so far once, in order."""
        aside = {m for step in self.aside for m in step}
        if aside:
            print(f"set aside, because they are not finite: {sorted(aside)}", file=sys.stderr)
        ids = range(self.base * self.size, self.version * self.size)
        whole = [m for m in ids if m not in aside]
        for stage in range(len(self.steps[0]) if self.steps else 0):
            counted = [m for step in self.steps for m in step[stage]]
            if counted != whole:
                raise Wrong(f"stage {stage} does not have every microbatch once")


def fields_behind(stage: list) -> tuple[bytes, int | None]:
    """The codecs of a stage, and the targets, where it has them."""
    codecs, targets, *_ = [*stage[STAGE_FIELDS:], *(b"", None)[len(stage) - STAGE_FIELDS :]]
    return codecs, targets


def check_scale(record: Rec, tokens: int, clip_norm: float) -> None:
    """The factor of the sums: tokens per target, times clipping by the norm."""
    if record.kind != COMMIT:
        return
    targets = fields_behind(record.stages[-1])[1]
    if targets is None:
        targets = tokens
    if not 0 <= targets <= tokens:
        raise Wrong(f"record {record.height}: {targets} targets of {tokens} tokens")
    per_target = tokens / targets if targets else 0.0
    scale = per_target * min(1.0, clip_norm / ((record.gradient_norm or 0.0) + CLIP_EPSILON))
    if abs(record.scale - scale) > ROUNDING * scale:
        raise Wrong(f"record {record.height}: it scales by {record.scale}, and not by {scale}")


def check(data: bytes, delay: int = 0, tokens: int = 0, clip_norm: float = 0.0) -> dict:
    chain, tally = newest_chain(entries(data)), Tally()
    for before, record in zip([None, *chain], chain, strict=False):
        check_link(before, record)
        check_signature(record)
        tally.add(record)
        if tokens:
            check_scale(record, tokens, clip_norm)
    tally.check()
    for change in tally.changes(delay):
        print(change, file=sys.stderr)
    if tally.targets and tally.targets[0] is not None:
        print(f"{sum(tally.targets)} targets in {len(tally.targets)} steps", file=sys.stderr)
    if tally.revotes:
        print(f"{tally.revotes} records only change the voters", file=sys.stderr)
    if chain and data[8:24] != chain[0].run:
        raise Wrong("its records are of another run")
    head = chain[-1].digest.hex() if chain else ""
    return {"ok": True, "steps": tally.version, "head": head}


def main() -> int:
    try:
        numbers = [*map(int, sys.argv[2:4]), *map(float, sys.argv[4:])]
        result = check(Path(sys.argv[1]).read_bytes(), *numbers)
    except (Wrong, OSError, TypeError, ValueError) as error:
        print(f"{sys.argv[1]}: {error}", file=sys.stderr)
        result = {"ok": False, "steps": 0, "head": ""}
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 5):
        sys.exit(__doc__)
    sys.exit(main())
