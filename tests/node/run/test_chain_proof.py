"""Whether the records of a checkpoint are the chain that led to it."""

import pytest
from checkpoint.harness import checkpoint_id, manifest_of
from checkpoint.test_checkpoint_manifest import stages
from hypothesis import given
from hypothesis import strategies as st
from run.chain.harness import MICROBATCHES, RUN, back, chain_of, commit, genesis

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.node.run.resume import check_records
from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import Prepare
from p2pswarm.trainer.coordinator_io.checkpoints import ChainMark, SavedChain

LENGTH = 4


def saved(length: int = LENGTH, version: int = 0, skipped: tuple[int, ...] = ()) -> tuple:
    """A chain, and the bytes of it that a checkpoint keeps."""
    chain, records = chain_of(length, genesis().after(version, b"m" * 32) if version else None)
    store = MemoryChain(bytes(8))
    for record in records:
        if record.height not in skipped:
            store.append(record)
    kept = SavedChain(chain, store)
    return chain, kept, kept.records(kept.mark())


def manifest(chain: Chain, **changes):
    values = {"run": RUN, "head": chain.head.digest, "step": chain.head.version} | changes
    return manifest_of(stages(), checkpoint_id(**values))


@pytest.mark.parametrize("version", [0, 30])
@given(piece_bytes=st.integers(1, 5000))
def test_the_chain_of_a_checkpoint_is_proved_however_it_comes(version, piece_bytes):
    chain, _, data = saved(version=version)
    parts = (data[i : i + piece_bytes] for i in range(0, len(data), piece_bytes))

    said = check_records(parts, manifest(chain))

    assert said == f"4 records lead from step {version} to step {version + 4}"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"head": b"x" * 32}, "does not lead to step 4"),
        ({"step": 5}, "does not lead to step 5"),
        ({"run": b"R" * 16}, "is of another run"),
    ],
)
def test_a_chain_that_leads_elsewhere_is_no_proof(changes, part):
    chain, _, data = saved()

    with pytest.raises(BadCheckpoint, match=part):
        check_records([data], manifest(chain, **changes))


@pytest.mark.parametrize(
    ("backs", "said"),
    [
        ((2,), "6 records lead from step 0 to step 3, and went back to step 2 on the way"),
        (
            (2, 1),
            (
                "8 records lead from step 0 to step 2, and went back 2 times on the way, the last "
                "time to step 1"
            ),
        ),
    ],
)
def test_a_chain_that_goes_back_is_proved_and_says_so(backs, said):
    chain, records = chain_of(LENGTH)
    for version in backs:
        for record in (back, commit):
            values = (version,) if record is back else ()
            records.append(record(chain.head, *values))
            chain.append(records[-1])
    data = log_header(RUN, bytes(8)) + b"".join(map(log_entry, records))

    assert check_records([data], manifest(chain)) == said


def test_a_record_that_was_changed_or_left_out_is_found():
    chain, _, data = saved()
    records = chain_of(LENGTH)[1]
    head = log_header(RUN, bytes(8))
    without_one = head + b"".join(log_entry(record) for record in records if record.height != 1)
    forged = commit(chain_of(3)[0].head, by="stranger")
    with_forged = head + b"".join(map(log_entry, [*records[:3], forged]))
    promise = head + log_entry(Prepare(RUN, 1, bytes(16)))

    for wrong, part in (
        (without_one, "is no chain"),
        (with_forged, "is no chain"),
        (promise, "something else in it"),
        (data[:-1] + b"x" + data[-1:], "damaged|does not lead"),
        (head, "does not lead"),
        (b"", "does not lead"),
    ):
        with pytest.raises(BadCheckpoint, match=part):
            check_records([wrong], manifest(chain))


def test_a_trainer_that_lacks_records_keeps_none():
    _, kept, data = saved(skipped=(0,))

    assert data is None
    assert kept.records(ChainMark()) is None


def test_the_mark_before_the_first_record_is_empty():
    chain = Chain(genesis())

    assert SavedChain(chain, MemoryChain(bytes(8))).mark() == ChainMark(b"", 0)
    assert MICROBATCHES
