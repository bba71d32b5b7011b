from dataclasses import replace

import pytest
from run.chain.harness import back, chain_of, commit, genesis, key, peer, stage_commit, unsigned

from p2pswarm.net.wire.message import LONG_BYTES_MAX, decode, encode
from p2pswarm.run.chain.messages import Promise, Propose
from p2pswarm.run.chain.record import (
    CARRIER_BYTES_MAX,
    RECORD_BYTES_MAX,
    RECORD_TAG,
    SIGNED_END,
    Contributor,
    StageCommit,
    VoterId,
    about_bytes,
    authentic,
    digest,
    first_number,
    members_that_fit,
    sign,
    term_of,
)
from p2pswarm.run.messages.field_limits import GROUP_MAX


def test_a_record_comes_back_from_its_bytes_with_the_same_digest():
    record = commit(genesis().head())

    again = decode(encode(record))

    assert again == record
    assert digest(again) == digest(record)


def test_a_record_that_chooses_no_codecs_has_the_bytes_that_it_had_before_any_could():
    was = "1dd8cd4995c2b7715691abcf33e837ef95751d6c9858d2c3c9477277d6f49991"

    assert digest(commit(genesis().head())).hex() == was


def test_a_choice_of_codecs_is_a_part_of_the_record():
    record = commit(genesis().head(), stages=(stage_commit(0, 1, codecs=b"\x07\x0a"),))

    assert decode(encode(record)) == record
    assert digest(record) != digest(commit(genesis().head()))


def test_the_signature_is_the_coordinators():
    record = commit(genesis().head(), "a")

    assert record.coordinator == peer("a")
    assert authentic(record)


@pytest.mark.parametrize(
    "changes", [{"loss": 0.1}, {"saved": 1}, {"signature": bytes(64)}, {"key": key("b").public_key}]
)
def test_a_changed_record_is_not_authentic(changes):
    record = commit(genesis().head(), "a")

    assert not authentic(replace(record, **changes))


def test_a_commit_makes_the_next_version_and_a_back_an_earlier_one():
    chain, _ = chain_of(3)

    assert commit(chain.head).version == 4
    assert back(chain.head, 1).version == 1


def test_both_electorates_stand_in_the_record():
    before, after = (VoterId(peer("a"), bytes(8)),), (VoterId(peer("b"), bytes(8)),)
    record = replace(commit(genesis().head()), voters_before=before, voters=after)

    assert record.electorates == (before, after)


def full(stages: int, microbatches: int, members: int):
    """A record with so many members in all, none of whose fields could be longer."""
    groups = [members // stages + (stage < members % stages) for stage in range(stages)]
    lives = iter(range(members))
    commits = tuple(
        StageCommit(
            tuple(Contributor(next(lives).to_bytes(32), 2**62) for _ in range(size)),
            bytes(microbatches),
            bytes(32),
            bytes(32),
            b"\x07\x0a",
        )
        for size in groups
    )
    voters = tuple(VoterId(bytes(32), bytes(8)) for _ in range(5))
    return replace(
        unsigned(genesis().head(), 2**30 - 1),
        stages=commits,
        height=2**48,
        step=2**48,
        saved=2**48,
        generation=2**62,
        first=2**62,
        count=microbatches,
        trainers=(bytes(32),) * 16,
        voters=voters,
        voters_before=voters,
    )


@pytest.mark.parametrize(
    ("stages", "microbatches"), [(1, 8), (10, 1_000), (256, 16), (4, 10_000), (10, 8_000)]
)
def test_so_many_members_fit_into_a_record(stages, microbatches):
    members = min(members_that_fit(stages, microbatches), GROUP_MAX * stages)
    assert members >= stages

    signed = sign(full(stages, microbatches, members), key("a"))

    assert len(encode(signed)) <= RECORD_BYTES_MAX
    assert len(encode(signed)) <= about_bytes(signed) <= len(encode(signed)) + 40_000


def test_a_thousand_members_ten_stages_and_eight_thousand_microbatches_fit():
    assert members_that_fit(10, 8_000) >= 1_024


def test_what_carries_the_longest_record_may_be_as_long():
    record = sign(full(10, 8_000, members_that_fit(10, 8_000)), key("a"))
    proposal = Propose(record.run, record.term, record)
    promise = Promise(record.run, bytes(8), record.term, bytes(16), record.term, record)

    assert all(len(encode(one)) > RECORD_BYTES_MAX - 500 for one in (record, proposal, promise))
    assert [decode(encode(one)) for one in (record, proposal, promise)] == [
        record,
        proposal,
        promise,
    ]
    assert CARRIER_BYTES_MAX <= LONG_BYTES_MAX


def test_a_run_that_counts_too_much_has_no_record():
    assert members_that_fit(64, 2_000) < 0
    with pytest.raises(ValueError, match="over 128128"):
        sign(full(6, 25_000, 6), key("a"))


def test_a_record_over_the_limit_is_not_authentic_even_if_its_signature_is():
    record = replace(full(2, 62_000, 2), key=key("a").public_key)
    missing = CARRIER_BYTES_MAX - len(encode(record))
    stage = replace(record.stages[0], holders=bytes(62_000 + missing))
    long = replace(record, stages=(stage, record.stages[1]))
    signature = key("a").sign(RECORD_TAG, encode(long)[:SIGNED_END])

    assert len(encode(long)) == CARRIER_BYTES_MAX > RECORD_BYTES_MAX
    assert not authentic(replace(long, signature=signature))
    assert digest(long)  # it has a name
    with pytest.raises(ValueError, match="over 128000: fewer members or microbatches"):
        sign(long, key("a"))


def test_numbers_of_one_term_are_below_those_of_the_next():
    assert term_of(first_number(3)) == 3
    assert term_of(first_number(4) - 1) == 3
