"""The step's ledger: a whole batch is one entry a stage for every microbatch."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.step.ledger import CountResult, StepLedger

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)
CARL = Incarnation(b"c" * 32, 3)


def test_a_contribution_counts_once():
    ledger = StepLedger(first=10, microbatches=2, stages=2)

    assert ledger.count(10, 0, ANN) is CountResult.NEW
    assert ledger.count(10, 0, ANN) is CountResult.KNOWN
    assert ledger.count(10, 0, BOB) is CountResult.CLASH
    assert ledger.missing(10) == (1,)


def test_a_stranger_to_the_step_is_told_so():
    ledger = StepLedger(first=10, microbatches=2, stages=1)

    assert ledger.count(9, 0, ANN) is CountResult.STRAY
    assert ledger.count(12, 0, ANN) is CountResult.STRAY


def test_it_is_complete_when_every_stage_has_all():
    ledger = StepLedger(first=0, microbatches=2, stages=2)
    for microbatch in (0, 1):
        ledger.count(microbatch, 0, ANN)
        assert not ledger.complete
        ledger.count(microbatch, 1, BOB)

    assert ledger.complete
    assert StepLedger(first=0, microbatches=0, stages=2).complete


def test_a_life_takes_its_entries_along():
    ledger = StepLedger(first=4, microbatches=3, stages=2)
    for microbatch in (4, 5, 6):
        ledger.count(microbatch, 0, ANN if microbatch < 6 else BOB)
        ledger.count(microbatch, 1, BOB)

    assert ledger.void(ANN) == (4, 5)
    assert not ledger.complete
    assert ledger.missing(4) == (0,)
    assert ledger.missing(6) == ()
    assert ledger.void(ANN) == ()


def test_the_bitmap_counts_from_the_steps_first_microbatch():
    ledger = StepLedger(first=16, microbatches=10, stages=1)
    ledger.count(16, 0, ANN)
    ledger.count(25, 0, ANN)
    ledger.count(17, 0, BOB)

    assert ledger.bitmap(ANN) == bytes([0b0000_0001, 0b10])
    assert ledger.bitmap(BOB) == bytes([0b0000_0010, 0])


def test_a_ledger_of_nothing_is_a_mistake_of_ours():
    with pytest.raises(ValueError, match="0 stages"):
        StepLedger(first=0, microbatches=1, stages=0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.sampled_from([ANN, BOB]))))
def test_the_ledgers_of_the_lives_are_disjoint_whatever_is_claimed(results):
    ledger = StepLedger(first=0, microbatches=4, stages=2)
    counted: dict[tuple[int, int], Incarnation] = {}
    for microbatch, stage, by in results:
        result = ledger.count(microbatch, stage, by)
        holder = counted.setdefault((microbatch, stage), by)
        assert (result is CountResult.CLASH) == (holder != by)

    assert ledger.complete == (len(counted) == 8)
    assert sum(len(ledger.missing(m)) for m in range(4)) == 8 - len(counted)


@given(
    st.lists(st.tuples(st.integers(0, 19), st.integers(0, 2), st.sampled_from([ANN, BOB, None])))
)
def test_what_is_kept_by_holder_is_what_the_entries_say(entries):
    """None stands for the end of the incarnation that counted last."""
    ledger, held, last = StepLedger(first=0, microbatches=20, stages=3), {}, ANN
    for microbatch, stage, by in entries:
        if by is None:
            gone = sorted({m for (m, _), holder in held.items() if holder == last})
            assert ledger.void(last) == tuple(gone)
            held = {entry: holder for entry, holder in held.items() if holder != last}
        else:
            ledger.count(microbatch, stage, by)
            held.setdefault((microbatch, stage), by)
            last = by

        for one in range(20):
            missing = tuple(stage for stage in range(3) if (one, stage) not in held)
            assert ledger.missing(one) == missing
            assert ledger.all_counted(one) == (not missing)
        for holder in (ANN, BOB):
            bits = sum(1 << m for m in {m for (m, _), who in held.items() if who == holder})
            assert int.from_bytes(ledger.bitmap(holder), "little") == bits
            assert len(ledger.bitmap(holder)) == 3


sums = st.sets(st.integers(0, 15))


@given(told=sums, by_bob=sums, in_sum=sums, aside=sums)
def test_a_sum_fits_if_it_holds_all_that_was_told_and_nothing_of_others(
    told, by_bob, in_sum, aside
):
    """Else one microbatch would be in two sums, or in none."""
    ledger, by_bob = StepLedger(first=32, microbatches=16, stages=2), by_bob - told
    for index in told:
        ledger.count(32 + index, 1, ANN)
    for index in by_bob:
        ledger.count(32 + index, 1, BOB)
    for index in aside - told - by_bob:
        ledger.set_aside(32 + index)

    bitmap = sum(1 << index for index in in_sum).to_bytes(2, "little")
    beyond = ledger.fits(bitmap, ANN, 1)

    sound = told <= in_sum and not in_sum & (by_bob | (aside - told))
    assert (beyond is not None) == sound
    if beyond is not None:
        assert set(beyond) == {32 + index for index in in_sum - told}
        assert ledger.hand_over(ANN, CARL) == len(told)
        assert ledger.bitmap(ANN) == bytes(2)
        for microbatch in beyond:
            assert ledger.count(microbatch, 1, CARL) is CountResult.NEW
        assert ledger.bitmap(CARL) == bitmap
        assert set(ledger.void(CARL)) == {32 + index for index in in_sum}


@given(st.binary(max_size=8))
def test_what_is_not_of_the_step_is_in_no_sum_that_fits(bitmap: bytes):
    ledger = StepLedger(first=0, microbatches=10, stages=1)

    fits = ledger.fits(bitmap, ANN, 0)

    assert (fits is None) == (int.from_bytes(bitmap, "little") >= 1 << 10)


def test_keepers_stand_below_and_just_above_the_stages_that_lack_it():
    ledger = StepLedger(first=0, microbatches=2, stages=5)
    for stage in (0, 1, 3, 4):
        ledger.count(0, stage, ANN if stage else BOB)

    assert ledger.keepers(0) == (BOB.peer, ANN.peer, b"", ANN.peer, b"")
    assert ledger.keepers(1) == (), "nobody has counted it"


def test_a_stage_between_two_that_lack_it_is_no_keeper():
    ledger = StepLedger(first=0, microbatches=1, stages=4)
    ledger.count(0, 1, ANN)
    ledger.count(0, 3, BOB)

    assert ledger.keepers(0) == (b"", b"", b"", BOB.peer)


def test_what_all_have_counted_needs_no_keeper():
    ledger = StepLedger(first=0, microbatches=1, stages=2)
    ledger.count(0, 0, ANN)
    ledger.count(0, 1, BOB)

    assert ledger.keepers(0) == ()
