"""What most members of a stage report stands, not what the first one says."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import DigestsTied, MemberReady
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS, Agreement, StageDigests


def member(number: int) -> Incarnation:
    return Incarnation(bytes([number]) * 32, 50 - number)


ANN, BOB, CID, DAN = (member(n) for n in range(1, 5))


def poll(*members: Incarnation) -> StageDigests:
    digests = StageDigests()
    digests.expect(0, 1, members)
    return digests


SAID = [(ANN, b"x"), (BOB, b"y"), (CID, b"y")]


@pytest.mark.parametrize("order", list(itertools.permutations(SAID)))
def test_the_odd_one_of_three_is_named_whenever_it_speaks(order):
    digests = poll(ANN, BOB, CID)

    for one, digest in order:
        digests.on_report(0, 1, one, digest)

    assert digests.known(0, 1) == b"y"
    assert digests.differing() == [ANN]
    assert digests.tied() == []


def test_nothing_stands_while_another_digest_could_have_more_votes():
    digests = poll(ANN, BOB, CID)
    digests.on_report(0, 1, ANN, b"x")

    assert digests.known(0, 1) is None
    digests.on_report(0, 1, BOB, b"x")

    assert digests.known(0, 1) == b"x"


@pytest.mark.parametrize("order", [(ANN, BOB), (BOB, ANN)])
def test_in_a_tie_the_first_in_peer_order_stands_and_it_is_told_once(order):
    digests = poll(ANN, BOB)

    for one in order:
        digests.on_report(0, 1, one, b"x" if one is ANN else b"y")

    assert digests.known(0, 1) == b"x"
    assert digests.differing() == [BOB]
    assert digests.tied() == [(0, 1)]
    assert digests.tied() == []


def test_one_that_is_lost_before_it_reports_is_not_waited_for():
    digests = poll(ANN, BOB)
    digests.on_report(0, 1, BOB, b"x")

    digests.on_end(ANN, served=True)

    assert digests.known(0, 1) == b"x"


def test_one_that_is_lost_after_its_report_has_still_voted():
    digests = poll(ANN, BOB, CID)
    digests.on_report(0, 1, ANN, b"x")
    digests.on_end(ANN, served=True)
    digests.on_report(0, 1, BOB, b"y")

    digests.on_report(0, 1, CID, b"x")

    assert digests.known(0, 1) == b"x"


def test_when_all_are_lost_nothing_stands_but_what_the_record_says():
    digests = poll(ANN)
    digests.on_end(ANN, served=True)
    assert digests.known(0, 1) is None

    digests.on_record(0, 1, b"x")

    assert digests.known(0, 1) == b"x"


def test_a_late_report_is_compared_with_what_stands():
    digests = poll(ANN, BOB, CID)
    digests.on_report(0, 1, ANN, b"x")
    digests.on_report(0, 1, BOB, b"x")
    assert digests.differing() == []

    digests.on_report(0, 1, CID, b"y")

    assert digests.differing() == [CID]


def test_words_of_others_and_of_other_versions_change_nothing():
    digests = poll(ANN, BOB)
    digests.expect(1, 1, [CID])

    digests.on_report(0, 1, DAN, b"y")
    digests.on_report(0, 0, ANN, b"y")
    digests.on_report(7, 1, ANN, b"y")
    digests.on_report(0, 1, ANN, b"x")
    digests.on_report(0, 1, ANN, b"z")
    digests.on_report(0, 1, BOB, b"x")

    assert digests.known(0, 1) == b"x"
    assert digests.known(0, 0) is None
    assert digests.known(1, 1) is None
    assert digests.differing() == []


@given(st.lists(st.sampled_from([b"x", b"y", b"z"]), min_size=1, max_size=7), st.randoms())
def test_the_order_of_reports_decides_nothing(said, random):
    members = [member(number) for number in range(len(said))]
    reports = list(zip(members, said, strict=True))
    outcomes = []
    for _ in range(3):
        random.shuffle(reports)
        digests = poll(*members)
        for one, digest in reports:
            digests.on_report(0, 1, one, digest)
        outcomes.append((digests.known(0, 1), sorted(d.number for d in digests.differing())))

    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert said.count(outcomes[0][0]) == max(map(said.count, said))


def test_two_right_replicas_stay_though_a_wrong_one_speaks_first():
    play = Play()
    ann, bob, cid = (play.serve(name) for name in "abc")
    play.count(ann, 0)
    play.count(bob, 1)
    play.reduce(ann, bob, cid)

    for one, digest in ((ann, b"wrong"), (bob, b"w1"), (cid, b"w1")):
        play.commit(one, digest)

    evicted = play.seen(act.Evict)
    assert (evicted[0].incarnation, evicted[0].reason) == (ann, OTHER_WEIGHTS)
    assert [d.incarnation for d in evicted[1:]] == [bob, cid]  # their sums are void
    assert play.join("b", stage=0, version=1, digest=b"w1")
    assert [m.incarnation.peer for m in play.seen(MemberReady)] == [bob.peer]


def test_a_tie_of_two_replicas_is_told():
    play = Play()
    ann, bob = play.averaged("a", "b")

    play.commit(bob, b"x")
    play.commit(ann, b"y")

    actions = play.coordinator.drain()
    assert [a for a in actions if isinstance(a, DigestsTied)] == [DigestsTied(0, 1)]
    assert [a.incarnation for a in actions if isinstance(a, act.Evict)] == [bob, ann]


def test_no_step_is_reduced_before_the_weights_that_it_used_are_compared():
    play = Play()
    ann, bob = play.averaged("a", "b")
    play.commit(ann, b"w1")
    play.count(ann, 2, step=1)
    play.count(ann, 3, step=1)
    assert play.seen(act.SendReduce) == []

    play.commit(bob, b"w1")

    assert {order.incarnation for order in play.seen(act.SendReduce)} == {ann, bob}


def test_how_many_digests_agree_is_counted_over_all_stages():
    ann, bob, cid = map(member, range(1, 4))
    digests = poll(ann, bob, cid)
    digests.expect(1, 1, [member(4)])
    for one, digest in [(ann, b"a"), (bob, b"a"), (cid, b"b")]:
        digests.on_report(0, 1, one, digest)
    digests.on_report(1, 1, member(4), b"d")

    assert digests.agreement(1) == Agreement(equal=3, compared=4)
    assert digests.agreement(2) == Agreement(equal=0, compared=0)
