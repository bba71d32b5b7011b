"""Two members between whom nothing passes: which of them leaves the averaging."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.trainer.blame.broken_pairs import AVERAGINGS, MUTUAL_S, BrokenPairs
from p2pswarm.trainer.blame.failing_servers import PAUSE_FIRST_S
from p2pswarm.trainer.reports import actions as act

ANN, BOB, EVE = b"a" * 32, b"b" * 32, b"e" * 32


@pytest.mark.parametrize(("counts", "leaves"), [((0, 8), ANN), ((4, 4), ANN), ((8, 0), BOB)])
def test_the_one_that_has_counted_less_leaves_whoever_complains(counts, leaves):
    assert BrokenPairs().leaves(ANN, BOB, counts, 0.0) == leaves


def test_the_word_of_one_member_alone_counts_once():
    pairs = BrokenPairs()
    assert pairs.leaves(EVE, ANN, (8, 0), 0.0) == ANN

    for _ in range(AVERAGINGS):
        assert pairs.leaves(EVE, BOB, (8, 0), 100.0) == EVE
        pairs.averaged([EVE, BOB])

    assert pairs.leaves(EVE, BOB, (8, 0), 100.0) == BOB


def test_what_both_say_of_each_other_counts_always_for_a_while():
    pairs = BrokenPairs()
    for step in range(3):
        pairs.said(BOB, ANN, float(step))
        assert pairs.leaves(ANN, BOB, (8, 0), float(step)) == BOB

    assert pairs.leaves(ANN, BOB, (8, 0), 2.0 + MUTUAL_S) == BOB, "its word alone, for once"
    assert pairs.leaves(ANN, BOB, (8, 0), 2.0 + MUTUAL_S) == ANN


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["said", "leaves", "averaged"]),
            st.integers(0, 5),
            st.integers(0, 5),
            st.integers(0, 8),
            st.integers(0, 8),
        ),
        max_size=80,
    )
)
def test_one_of_the_two_leaves_and_no_liar_throws_out_two_in_a_row(ops):
    pairs, now_s, said, thrown_out = BrokenPairs(pairs_max=4), 0.0, set(), {}
    for what, one, other, ours, theirs in ops:
        by, of = bytes([one]) * 32, bytes([other]) * 32
        now_s += 1.0
        if what == "said" and by != of:
            pairs.said(by, of, now_s)
            said.add((by, of))
        elif what == "averaged":
            pairs.averaged([by, of])
            thrown_out.clear()
        elif what == "leaves" and by != of:
            left = pairs.leaves(by, of, (ours, theirs), now_s)
            assert left in (by, of)
            assert left == by or theirs < ours, "nobody leaves that has counted more"
            if left == of and (of, by) not in said and len(thrown_out) < 4:
                assert by not in thrown_out
                thrown_out[by] = of


def a_stage_with_a_cut(play):
    """Two members of a stage: one has counted all of the step, and the other nothing."""
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0, 1)
    return ann, bob


def test_a_newcomer_behind_a_cut_leaves_and_no_work_is_done_again():
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    play.coordinator.reduce_failed(ann, 1, "no road", play.now_s, bob.peer)
    play.promise(ann, bob)
    play.seen(object)

    play.coordinator.reduce_failed(ann, 2, "no road", play.now_s, bob.peer)
    play.promise(ann)

    actions = play.coordinator.actions()
    assert [one.incarnation for one in actions if isinstance(one, act.Evict)] == [bob]
    assert [one for one in actions if isinstance(one, act.Launch)] == []
    (order,) = [one for one in actions if isinstance(one, act.SendReduce)]
    assert order.message.group == (ann.peer,)


def test_who_left_for_a_cut_is_not_ready_again_at_once():
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    for generation in (1, 2):
        play.coordinator.reduce_failed(ann, generation, "no road", play.now_s, bob.peer)
        play.promise(ann, bob)
    play.reduce(ann)
    play.coordinator.decided(0, play.now_s)
    play.commit(ann, b"w1")

    again = play.join("b")
    play.ready(again, 1, b"w1")
    assert not play.coordinator.members.alive(again).ready
    play.wait(PAUSE_FIRST_S)
    play.promise(ann)  # what was launched is late by now

    assert play.coordinator.members.alive(again).ready


@pytest.mark.parametrize("beside", [None, EVE])
def test_who_complains_of_nobody_in_its_stage_leaves_itself(beside):
    play = Play()
    ann, bob = a_stage_with_a_cut(play)
    for generation in (1, 2):
        play.coordinator.reduce_failed(ann, generation, "no road", play.now_s, beside)
        play.promise(ann, bob)

    assert [one.incarnation for one in play.seen(act.Evict)] == [ann]
