"""Tests of `run/chain/participant.py`."""

import random
from itertools import pairwise

import pytest
from run.chain.harness import commit, peer, voter
from run.chain.town import LATENCY_S, begun, taken_over_s

from p2pswarm.run.chain.actions import (
    Ask,
    Deposed,
    Followed,
    Leading,
    Persist,
    RecordDecided,
    Reply,
    VotesMissing,
)
from p2pswarm.run.chain.leader import RESEND_S, LeaderPhase
from p2pswarm.run.chain.messages import Denied, Prepare, Propose
from p2pswarm.run.chain.participant import (
    ATTEMPT_S,
    CHANCE_S,
    KEEN_S,
    RANK_S,
    SILENCE_S,
    Standby,
    StandbyState,
)
from p2pswarm.run.messages.field_limits import TERM_MAX

A, B = peer("a"), peer("b")


def waiting(rank: int = 0, now_s: float = 0.0) -> Standby:
    return Standby(rank, random.Random(1), now_s)


def following(rank: int = 0) -> Standby:
    standby = waiting(rank)
    standby.on_leader(A, 1, 10.0)
    return standby


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_it_stands_after_silence_and_its_rank(rank):
    standby = following(rank)

    least_s = 10.0 + SILENCE_S + rank * RANK_S
    assert least_s <= standby.next_deadline_s <= least_s + CHANCE_S
    assert standby.on_deadline(standby.next_deadline_s) == 2
    assert standby.state is StandbyState.STANDING


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_link_to_the_coordinator_shortens_the_wait(rank):
    standby = following(rank)

    standby.link_lost(A, 11.0)

    assert 11.0 + rank * RANK_S <= standby.next_deadline_s <= 11.0 + rank * RANK_S + CHANCE_S


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_has_just_begun_waits_for_nobody_once_most_voters_seek_a_coordinator(rank):
    standby = waiting(rank)

    standby.on_seekers(1.0)
    due_s = standby.next_deadline_s
    standby.on_seekers(1.1)

    assert 1.0 + rank * RANK_S <= due_s <= 1.0 + rank * RANK_S + CHANCE_S
    assert standby.next_deadline_s == due_s


def test_who_follows_a_coordinator_waits_for_it_whoever_seeks_one():
    standby = following()
    before_s = standby.next_deadline_s

    standby.on_seekers(11.0)

    assert standby.next_deadline_s == before_s


def test_other_links_do_not_matter():
    standby = following()
    before_s = standby.next_deadline_s

    standby.link_lost(B, 11.0)

    assert standby.next_deadline_s == before_s


def test_every_word_of_a_coordinator_begins_the_wait_anew():
    standby = following()

    assert not standby.on_leader(A, 1, 14.0)

    assert standby.next_deadline_s >= 14.0 + SILENCE_S


def test_it_gives_way_to_who_leads_a_term_not_below_its_own():
    standby = following()
    standby.on_deadline(20.0)

    assert not standby.on_leader(A, 1, 20.1)
    assert standby.state is StandbyState.STANDING
    assert standby.on_leader(B, 2, 20.2)

    assert standby.state is StandbyState.FOLLOWING
    assert standby.coordinator == B


def test_an_attempt_that_hangs_is_given_up_and_tried_again_in_a_higher_term():
    standby = following()
    standby.on_deadline(20.0)
    assert standby.next_deadline_s == 20.0 + ATTEMPT_S

    assert standby.on_deadline(23.0) is None
    assert standby.on_deadline(standby.next_deadline_s) == 3


def test_a_denied_attempt_takes_a_term_above_what_it_heard_of():
    standby = following()
    standby.on_deadline(20.0)

    standby.on_failure(7, 20.5)

    assert standby.on_deadline(standby.next_deadline_s) == 8


def test_pauses_grow_to_a_limit():
    standby = following()
    pauses_s = []
    for _ in range(8):
        now_s = standby.next_deadline_s
        standby.on_deadline(now_s)
        standby.on_failure(0, now_s)
        pauses_s.append(standby.next_deadline_s - now_s)

    assert pauses_s[0] <= CHANCE_S
    assert 9.0 <= pauses_s[-1] <= 9.0 + CHANCE_S


def test_pauses_do_not_grow_while_the_voters_may_still_find_that_the_coordinator_is_gone():
    standby = following()
    standby.link_lost(A, 11.0)
    tries_s = []
    while (now_s := standby.next_deadline_s) < 11.0 + KEEN_S:
        standby.on_deadline(now_s)
        standby.on_failure(0, now_s + 0.001)
        tries_s.append(now_s)

    assert all(b - a <= CHANCE_S + 0.001 for a, b in pairwise([11.0, *tries_s, 11.0 + KEEN_S]))
    assert len(tries_s) < 60  # a few small calls each
    pauses_s = []
    for _ in range(3):
        now_s = standby.next_deadline_s
        standby.on_deadline(now_s)
        standby.on_failure(0, now_s)
        pauses_s.append(standby.next_deadline_s - now_s)
    assert pauses_s[-1] > 3 * (RANK_S + CHANCE_S)


def test_who_leads_waits_for_nobody_until_it_is_deposed():
    standby = following()
    standby.on_deadline(20.0)

    standby.leads()
    standby.link_lost(A, 21.0)
    assert standby.next_deadline_s is None
    assert standby.state is StandbyState.LEADING

    assert standby.on_leader(B, 3, 22.0)
    assert standby.next_deadline_s >= 22.0 + SILENCE_S


def test_a_founder_stands_at_once():
    standby = waiting(now_s=3.0)

    standby.start(3.0)

    assert standby.on_deadline(3.0) == 1


def test_when_terms_run_out_nobody_stands():
    standby = waiting()
    standby.on_leader(A, TERM_MAX, 1.0)

    assert standby.on_deadline(10.0) is None
    assert standby.next_deadline_s is None


def test_the_successor_that_a_coordinator_names_stands_when_the_voters_have_heard_of_it():
    standby = following(rank=3)

    standby.on_handover(A, B, 11.0, ours=True)
    standby.link_lost(A, 11.1)
    assert standby.named

    assert standby.next_deadline_s == 11.0 + RANK_S
    assert standby.on_deadline(standby.next_deadline_s) == 2


def test_the_others_wait_for_the_successor_as_for_a_coordinator():
    standby = following()

    standby.on_handover(A, B, 11.0, ours=False)
    standby.link_lost(A, 11.1)

    assert standby.next_deadline_s >= 11.0 + SILENCE_S


def test_only_the_coordinator_that_is_followed_names_a_successor():
    standby = following()
    before_s = standby.next_deadline_s

    standby.on_handover(B, B, 11.0, ours=True)

    assert standby.next_deadline_s == before_s


def test_a_trainer_that_was_named_is_so_no_more_once_it_leads_fails_twice_or_follows():
    for ended in (
        lambda one: one.leads(),
        lambda one: (one.on_failure(2, 12.0), one.on_failure(3, 13.0)),
        lambda one: one.on_leader(B, 5, 12.0),
    ):
        standby = following()
        standby.on_handover(A, B, 11.0, ours=True)
        ended(standby)
        assert not standby.named


def test_a_founder_leads_at_once_and_stays():
    town = begun()

    town.decide("a")
    town.run(60.0)

    assert town.leaders() == ["a"]
    assert [type(action) for _, action in town.said["a"]] == [Leading, RecordDecided]
    assert [seat.learner.chain.head.height for seat in town.seats.values()] == [1, 1, 1]


def test_a_lone_trainer_goes_on_from_its_file():
    town = begun("a", "a")
    town.decide("a")

    town.start("a")
    town.seats["a"].standby.start(town.now_s)
    town.run(3.0)

    assert town.leaders() == ["a"]
    assert town.seats["a"].leader.attempt.term == 2
    assert town.seats["a"].leader.head.height == 1
    town.decide("a")
    assert town.seats["a"].learner.chain.head.height == 2


def test_a_killed_coordinator_is_followed_within_a_second():
    town = begun()
    town.decide("a")

    town.kill("a")
    killed_s = town.now_s
    town.run(killed_s + 3.0)

    assert town.leaders() == ["a", "b"]  # a is dead and knows nothing of it
    assert taken_over_s(town, "b") - killed_s < 1.0
    assert town.seats["b"].leader.head.height == 1


def test_a_frozen_coordinator_is_followed_after_its_silence_and_stops_when_it_wakes():
    town = begun()
    town.decide("a")
    town.away.add("a")
    frozen_s = town.now_s
    town.run(frozen_s + 8.0)
    assert taken_over_s(town, "b") - frozen_s < 6.0
    town.decide("b")

    town.away.clear()
    town.run(town.now_s + 3.0)

    assert town.leaders() == ["b"]
    assert any(isinstance(action, Deposed) for _, action in town.said["a"])
    assert town.seats["a"].learner.chain.head.height == 2


def test_what_was_proposed_and_not_heard_of_is_decided_by_the_next_leader():
    town = begun()
    seat = town.seats["a"]
    record = commit(seat.leader.head, "a", 1)
    seat.propose(record, town.now_s)
    town.carry_out("a")
    town.run(town.now_s + 1.5 * LATENCY_S)

    town.kill("a")
    town.run(town.now_s + 3.0)

    decided = [a.record for _, a in town.said["b"] if isinstance(a, RecordDecided)]
    assert decided == [record]


def test_without_a_majority_nobody_leads_and_nothing_is_decided():
    town = begun()
    town.kill("a")
    town.kill("c")

    town.run(60.0)
    assert "b" not in town.leaders()
    silent = [action for _, action in town.said["b"] if isinstance(action, VotesMissing)]
    assert silent == [VotesMissing((voter("a"), voter("c")))]
    town.away.clear()
    town.run(80.0)

    assert len(town.leaders()) == 1


def test_a_standby_that_wakes_up_unseats_nobody():
    town = begun()
    town.seats["b"].link_lost(peer("a"), town.now_s)
    town.away.add("b")
    town.run(20.0)
    town.away.clear()

    town.run(40.0)

    assert town.leaders() == ["a"]
    assert len(town.said["a"]) == 1


def test_of_many_standbys_one_leads():
    town = begun("abde", "abcde")

    town.kill("a")
    town.run(town.now_s + 20.0)

    assert len([name for name in town.leaders() if name != "a"]) == 1


@pytest.mark.parametrize(
    ("seekers", "leads"), [("c", False), ("cc", False), ("cz", False), ("cd", True)]
)
def test_a_trainer_that_was_started_again_leads_once_most_voters_seek_a_coordinator(seekers, leads):
    town = begun("ab", "abcde")
    town.decide("a")
    town.kill("a")
    town.start("b")
    began_s = town.now_s

    for seeker in seekers:
        town.seats["b"].on_seeker(peer(seeker), began_s)
    town.run(began_s + RANK_S + CHANCE_S + 1.0)

    assert ("b" in town.leaders()) is leads


def test_of_two_that_stand_at_once_and_need_each_other_the_one_behind_gives_way():
    town = begun("abd", "abd")
    town.decide("a")
    town.kill("a")
    stood_s = town.now_s
    for name in "bd":
        town.seats[name].standby.start(stood_s)

    town.run(stood_s + ATTEMPT_S)

    assert town.leaders() == ["a", "b"]
    assert taken_over_s(town, "b") < stood_s + RESEND_S + 4 * LATENCY_S
    assert town.seats["b"].leader.attempt.term == 2


def test_who_follows_gives_up_its_own_attempt():
    town = begun()
    town.kill("a")
    town.run(town.now_s + 3.0)
    term = town.seats["b"].leader.attempt.term
    town.away.clear()

    town.seats["a"].on_deadline(town.now_s)
    town.carry_out("a")
    town.run(town.now_s + 2.0)

    assert town.seats["a"].leader is None
    assert town.seats["a"].standby.term >= term


def test_only_a_leader_proposes():
    town = begun()

    with pytest.raises(ValueError, match="another leads"):
        town.seats["b"].propose(commit(town.genesis.head()), 0.0)
    assert town.seats["a"].leader.phase is LeaderPhase.LEADING


def test_a_trainer_that_slept_fetches_what_was_decided():
    town = begun()
    town.away.add("b")
    for _ in range(3):
        town.decide("a")

    town.away.clear()
    town.run(town.now_s + 3.0)

    assert town.seats["b"].learner.chain.head.height == 3
    assert town.leaders() == ["a"]


def test_a_trainer_that_knows_little_fetches_the_rest_before_it_leads():
    town = begun()
    town.away.add("b")
    for _ in range(3):
        town.decide("a")
    town.kill("a")
    town.away.discard("b")

    town.run(town.now_s + 20.0)

    assert town.seats["b"].leader.leads
    assert town.seats["b"].leader.head.height == 3
    learned = [entry for entry in town.nodes["b"].log if hasattr(entry, "height")]
    assert [entry.height for entry in learned][:2] == [0, 1]


def test_answers_after_the_end_of_an_attempt_are_dropped():
    town = begun()

    town.seats["b"].on_answer(peer("c"), Denied(town.genesis.run, bytes(8), 1, 1, 0), 1.0)

    assert town.seats["b"].actions() == []


def test_an_attempt_that_hangs_is_dropped():
    town = begun()
    town.kill("a")
    town.kill("c")
    town.run(town.now_s + 1.0)
    assert town.seats["b"].leader is not None

    town.run(town.now_s + 3.0)

    assert not any(isinstance(action, Leading) for _, action in town.said["b"])
    assert town.seats["b"].standby.term > 2


def test_a_leader_whose_own_voter_follows_another_stops_at_once():
    town = begun()
    seat = town.seats["a"]
    record = commit(town.genesis.head(), "b", 9)

    seat.on_call(peer("b"), Propose(town.genesis.run, 9, record), town.now_s)

    assert seat.leader is None
    assert [type(a) for a in seat.actions()] == [Persist, Reply, Followed, Deposed]
    assert seat.standby.coordinator == peer("b")


def test_a_call_before_the_deadline_changes_nothing():
    town = begun()
    for seat in town.seats.values():
        seat.on_deadline(town.now_s - 0.5)
        assert seat.actions() == []


def test_who_stands_promises_no_rival_its_own_term():
    town = begun()
    town.kill("a")
    town.kill("c")
    town.run(town.now_s + 1.0)
    seat = town.seats["b"]

    seat.on_call(peer("a"), Prepare(town.genesis.run, seat.leader.attempt.term, bytes(16)), 0.0)

    assert [type(action.message) for action in seat.actions()] == [Denied]


def test_the_trainer_that_the_coordinator_names_leads_at_once_and_the_former_one_follows():
    town = begun("abd", "abcde")
    town.decide("a")
    at_s = town.now_s

    town.seats["a"].hand_over(peer("d"), town.now_s)
    town.carry_out("a")
    town.run(at_s + 60.0)

    assert town.leaders() == ["d"]
    assert taken_over_s(town, "d") < at_s + 1.0
    assert [type(action) for _, action in town.said["a"]] == [Leading, RecordDecided, Deposed]
    assert town.said["b"] == []


def test_the_former_coordinator_leads_again_when_its_successor_is_gone():
    town = begun()
    town.decide("a")
    at_s = town.now_s
    town.away.add("b")

    town.seats["a"].hand_over(peer("b"), town.now_s)
    town.carry_out("a")
    town.run(at_s + 20.0)

    assert town.leaders() == ["a"]


def test_nobody_hands_over_what_another_leads():
    town = begun()

    with pytest.raises(ValueError, match="another leads"):
        town.seats["b"].hand_over(peer("a"), town.now_s)


def test_who_may_vote_soon_and_whose_stream_has_ended_is_asked_at_once():
    town = begun("ab", "abc")

    town.seats["a"].meet((peer("d"),))
    town.seats["a"].doubt(peer("c"))
    asked = [action.to for action in town.seats["a"].actions() if isinstance(action, Ask)]
    assert asked == [peer("d"), peer("c")]

    town.seats["b"].meet((peer("d"),))
    town.seats["b"].doubt(peer("c"))
    assert town.seats["b"].actions() == []
