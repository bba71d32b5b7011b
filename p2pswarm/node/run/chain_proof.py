"""Proves that the records of a checkpoint are the chain that led to it.

Units:   bytes; heights count records.
Errors:  BadCheckpoint, one line.
"""

from collections.abc import Iterable, Iterator

from p2pswarm.base.errors import BadCheckpoint, PeerError, Unusable
from p2pswarm.checkpoint.manifest import CheckpointManifest
from p2pswarm.run.chain.chain import Chain, Genesis
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, read_header
from p2pswarm.run.chain.record import CommitRecord, RecordKind

NAME = "the file of records"


def check_records(parts: Iterable[bytes], manifest: CheckpointManifest) -> str:
    """Check every record and what it follows; returns what was found, for people.

    `parts`: the bytes of the file. Who founded the run is taken from the first record, and how many
    microbatches a step has from the first that is of a step.
    """
    chain: Chain | None = None
    before: list[CommitRecord] = []
    back: list[int] = []
    try:
        for record in _records(parts, manifest.run):
            if record.kind == RecordKind.BACK:
                back.append(record.step)
            if chain is not None:
                chain.append(record)
                continue
            before.append(record)
            if record.kind == RecordKind.COMMIT:
                chain = Chain(_genesis(before[0], record.count))
                for one in before:
                    chain.append(one)
    except PeerError as error:
        raise BadCheckpoint(f"{NAME} is no chain: {error}") from error
    except Unusable as error:
        raise BadCheckpoint(str(error)) from error
    if chain is None or (chain.head.digest, chain.head.version) != (manifest.head, manifest.step):
        raise BadCheckpoint(f"{NAME} does not lead to step {manifest.step}")
    since = chain.genesis.version
    said = f"{chain.head.height:,} records lead from step {since} to step {manifest.step}"
    return f"{said}, {_back(back)}" if back else said


def _back(steps: list[int]) -> str:
    """How often the run has gone back, and where to."""
    if len(steps) == 1:
        return f"and went back to step {steps[0]} on the way"
    return f"and went back {len(steps):,} times on the way, the last time to step {steps[-1]}"


def _records(parts: Iterable[bytes], run: bytes) -> Iterator[CommitRecord]:
    """The records of a file, as its bytes come."""
    reader, begin = LogReader(NAME), b""
    for part in parts:
        data = part
        if len(begin) < HEADER_BYTES:
            begin += part
            if len(begin) < HEADER_BYTES:
                continue
            read_header(begin[:HEADER_BYTES], run, NAME)
            data = begin[HEADER_BYTES:]
        for entry in reader.feed(data):
            if not isinstance(entry.message, CommitRecord):
                raise BadCheckpoint(f"{NAME} has something else in it")
            yield entry.message
    reader.finish()


def _genesis(first: CommitRecord, microbatches: int) -> Genesis:
    """What the first record says of the beginning; its run is the manifest's."""
    founder = (first.coordinator,)
    voters, stages = first.voters_before, len(first.stages)
    genesis = Genesis(first.run, stages, microbatches, founder, voters)
    return genesis.after(first.step, first.prev)
