"""Members between whom nothing passes, as both say: who leaves before they average."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import BatchConfig
from p2pswarm.trainer.members.blame import PAUSE_FIRST_S
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.unreachable_pairs import AVERAGINGS_SPENT as AVERAGINGS
from p2pswarm.trainer.members.unreachable_pairs import (
    MUTUAL_S,
    FailedPairs,
    SingleWords,
    UnreachablePairs,
)
from p2pswarm.trainer.reports import actions as act


class Stage:
    """One stage, its members, and what they have counted."""

    def __init__(self, names: str) -> None:
        self.members = Membership(1)
        self.pairs = UnreachablePairs(self.members)
        self.counts: dict[Incarnation, int] = {}
        self.by_name = {name: self.serve(name) for name in names}

    def serve(self, name: str) -> Incarnation:
        one = self.members.admit(name.encode() * 32, "h:1", 0, 0).incarnation
        self.members.make_ready(one)
        return one

    def say(self, by: str, of: str) -> None:
        self.pairs.on_report(self.by_name[by], [name.encode() * 32 for name in of])

    def cut(self, *pairs: str) -> None:
        """These pairs are cut, and no others, as all say."""
        for name in self.by_name:
            cut_off = [pair.replace(name, "") for pair in pairs if name in pair]
            self.say(name, "".join(cut_off))

    def leave(self, **counts: int) -> str:
        def counted(one: Incarnation) -> int:
            return counts.get(one.peer[:1].decode(), 0)

        return "".join(one.peer[:1].decode() for one in self.pairs.leavers(0, counted))


def test_of_two_that_say_so_of_each_other_the_one_with_less_counted_leaves():
    stage = Stage("abc")
    stage.cut("ab")

    assert stage.leave(a=3, b=2) == "b"
    assert Stage("abc").leave(a=3) == ""


def test_the_word_of_one_alone_moves_nobody():
    stage = Stage("abc")
    stage.say("a", "bc")
    stage.say("b", "c")

    assert stage.leave(a=8) == ""


def test_one_that_is_apart_from_two_leaves_rather_than_both():
    stage = Stage("abcd")
    stage.cut("ab", "ac")

    assert stage.leave(a=8) == "a"


def test_a_road_that_is_whole_again_is_forgotten():
    stage = Stage("ab")
    stage.cut("ab")
    stage.cut()

    assert stage.leave() == ""


def test_what_was_said_ends_with_the_incarnation():
    stage = Stage("ab")
    stage.cut("ab")
    stage.members.end(stage.by_name["a"])
    stage.pairs.on_end(stage.by_name["a"])
    stage.by_name["a"] = stage.serve("a")

    assert stage.leave() == ""
    stage.pairs.on_report(Incarnation(b"a" * 32, 1), [b"b" * 32])
    assert stage.leave() == "", "what a former incarnation says counts for nothing"


def test_a_member_that_is_silent_to_one_after_another_has_only_one_thrown_out():
    stage = Stage("abe")
    stage.cut("ae")
    assert stage.leave(e=8, a=1) == "a"

    stage.cut("be")
    assert stage.leave(e=8, b=1) == "e"


def test_the_same_pair_parts_as_before_and_all_is_forgotten_in_time():
    stage = Stage("abe")
    for _ in range(2):
        stage.cut("ae")
        assert stage.leave(e=8, a=1) == "a"

    for _ in range(AVERAGINGS):
        stage.pairs.on_averaging([b"e" * 32])
    stage.cut("be")
    assert stage.leave(e=8, b=1) == "b"


@given(
    st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))),
    st.lists(st.integers(0, 8), min_size=6, max_size=6),
)
def test_those_that_stay_are_apart_from_nobody_and_nobody_leaves_in_vain(said, counts):
    names = "abcdef"
    stage = Stage(names)
    for number, name in enumerate(names):
        stage.say(name, "".join(names[of] for by, of in said if by == number != of))

    left = stage.leave(**dict(zip(names, counts, strict=True)))

    cut = {(a, b) for a, b in combinations(range(6), 2) if {(a, b), (b, a)} <= said}
    staying = [number for number, name in enumerate(names) if name not in left]
    assert not [pair for pair in cut if set(pair) <= set(staying)]
    in_a_pair = {number for pair in cut for number in pair}
    assert all(names.index(name) in in_a_pair for name in left)
    assert len(left) <= len(cut)
    assert not cut or len(staying) >= 1


def cut_off(play: Play, ann: Incarnation, bob: Incarnation) -> None:
    play.coordinator.on_unreachable_peers(ann, [bob.peer], play.now_s)
    play.coordinator.on_unreachable_peers(bob, [ann.peer], play.now_s)


FOUR = replace(CONFIG, batch=BatchConfig(microbatches=4, evaluate_every=0))


def test_nobody_leaves_before_all_is_counted_and_what_was_counted_is_launched_again():
    play = Play(FOUR)
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0)
    play.count(bob, 1)
    play.count(ann, 2)
    cut_off(play, ann, bob)
    assert not play.seen(act.Evict)

    play.count(ann, 3)
    play.wait(1.0)

    actions = play.coordinator.drain()
    assert [one.incarnation for one in actions if isinstance(one, act.Evict)] == [bob]
    assert [one.microbatch for one in actions if isinstance(one, act.Launch)] == [1]
    assert not [one for one in actions if isinstance(one, act.SendReduce)]


def test_a_cut_that_is_over_before_that_costs_nothing():
    play = Play(FOUR)
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0, 2)
    play.count(bob, 1)
    cut_off(play, ann, bob)

    play.coordinator.on_unreachable_peers(ann, [], play.now_s)
    play.count(ann, 3)

    assert not play.seen(act.Evict)


def test_a_cut_that_is_found_while_they_average_ends_that_at_once():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.count(ann, 0, 1)
    assert len(play.seen(act.SendReduce)) == len([ann, bob])

    cut_off(play, ann, bob)
    play.promise(ann)

    actions = play.coordinator.drain()
    assert [one.incarnation for one in actions if isinstance(one, act.Evict)] == [bob]
    (order,) = [one for one in actions if isinstance(one, act.SendReduce)]
    assert order.message.group == (ann.peer,)


def test_members_that_have_averaged_are_not_parted_because_another_stage_has_not():
    play = Play(replace(CONFIG, stages=2))
    ann, cid = play.serve("a"), play.serve("c")
    bob = play.join("b", stage=0)
    play.ready(bob)
    for microbatch in range(2):
        play.count(ann, microbatch)
        play.count(cid, microbatch)
    play.reduce(ann, bob)

    cut_off(play, ann, bob)

    assert not play.seen(act.Evict)


def test_who_left_is_ready_again_when_the_road_is_whole():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    cut_off(play, ann, bob)
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.coordinator.on_decision(0, play.now_s)
    play.commit(ann, b"w1")
    again = play.join("b")
    cut_off(play, ann, again)
    play.ready(again, 1, b"w1")
    play.wait(PAUSE_FIRST_S)
    play.promise(ann)
    assert not play.coordinator.members.alive(again).ready

    play.coordinator.on_unreachable_peers(again, [], play.now_s)

    assert play.coordinator.members.alive(again).ready


ANN, BOB, EVE = b"a" * 32, b"b" * 32, b"e" * 32


@pytest.mark.parametrize(
    ("counts", "leaves"),
    [((0, 8), ANN), ((4, 4), ANN), ((8, 0), BOB)],
)
def test_the_one_that_has_counted_less_leaves_whoever_complains(counts, leaves):
    assert FailedPairs(SingleWords()).leaver(ANN, BOB, counts, 0.0) == leaves


def test_the_word_of_one_member_alone_counts_once():
    words = SingleWords()
    pairs = FailedPairs(words)
    assert pairs.leaver(EVE, ANN, (8, 0), 0.0) == ANN

    for _ in range(AVERAGINGS):
        assert pairs.leaver(EVE, BOB, (8, 0), 100.0) == EVE
        words.on_averaging([EVE, BOB])

    assert pairs.leaver(EVE, BOB, (8, 0), 100.0) == BOB


def test_what_both_say_of_each_other_counts_always_for_a_while():
    pairs = FailedPairs(SingleWords())
    for step in range(3):
        pairs.on_report(BOB, ANN, float(step))
        assert pairs.leaver(ANN, BOB, (8, 0), float(step)) == BOB

    assert pairs.leaver(ANN, BOB, (8, 0), 2.0 + MUTUAL_S) == BOB, "its word alone, for once"
    assert pairs.leaver(ANN, BOB, (8, 0), 2.0 + MUTUAL_S) == ANN


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
    words, now_s, said, thrown_out = SingleWords(peers_max=4), 0.0, set(), {}
    pairs = FailedPairs(words, pairs_max=4)
    for what, one, other, ours, theirs in ops:
        by, of = bytes([one]) * 32, bytes([other]) * 32
        now_s += 1.0
        if what == "said" and by != of:
            pairs.on_report(by, of, now_s)
            said.add((by, of))
        elif what == "averaged":
            words.on_averaging([by, of])
            thrown_out.clear()
        elif what == "leaves" and by != of:
            left = pairs.leaver(by, of, (ours, theirs), now_s)
            assert left in (by, of)
            assert left == by or theirs < ours, "nobody leaves that has counted more"
            if left == of and (of, by) not in said and len(thrown_out) < 4:
                assert by not in thrown_out
                thrown_out[by] = of
