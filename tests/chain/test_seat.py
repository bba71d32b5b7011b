"""Trainers and servers with a clock and links: who leads, how soon, and what is decided."""

import heapq
import itertools
import random

import pytest
from chain.harness import commit, genesis, peer, voter
from chain.world import Node

from p2pswarm.chain.actions import (
    Ask,
    Deposed,
    Fetch,
    Followed,
    Leading,
    Persist,
    RecordDecided,
    Reply,
    VotesMissing,
)
from p2pswarm.chain.leader import LeaderPhase
from p2pswarm.chain.messages import Accepted, Denied, Prepare, Promise, Propose
from p2pswarm.chain.seat import Seat

LATENCY_S = 0.05
ANSWERS = Promise | Accepted | Denied


class Town:
    """Seats that call each other; some are away, and what is said to them is lost."""

    def __init__(self, trainers: str = "ab", voters: str = "abc") -> None:
        self.now_s = 0.0
        self.genesis = genesis(trainers, voters)
        self.away: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.seats: dict[str, Seat] = {}
        self.said: dict[str, list] = {}
        self._queue: list = []
        self._count = itertools.count()
        for name in dict.fromkeys(trainers + voters):
            self.nodes[name] = Node(name)
            self.start(name)

    def start(self, name: str) -> None:
        """The process begins, with what its file says."""
        node = self.nodes[name]
        node.start(self.genesis)
        seed = f"{name} {self.now_s}"
        self.seats[name] = Seat(node.voter, node.follower, random.Random(seed), self.now_s)
        self.said.setdefault(name, [])

    def run(self, until_s: float) -> None:
        while True:
            due = [
                (seat.next_deadline_s, name)
                for name, seat in self.seats.items()
                if name not in self.away and seat.next_deadline_s is not None
                if peer(name) in self.genesis.trainers
            ]
            first_s = min(due, default=(until_s, ""))
            if self._queue and self._queue[0][0] <= first_s[0]:
                at_s, _, to, by, thing = heapq.heappop(self._queue)
                if at_s > until_s:
                    heapq.heappush(self._queue, (at_s, next(self._count), to, by, thing))
                    break
                self.now_s = max(self.now_s, at_s)
                if not {to, by} & self.away:
                    self.arrive(to, by, thing)
                continue
            if first_s[0] >= until_s:
                break
            self.now_s = max(self.now_s, first_s[0])
            self.seats[first_s[1]].on_deadline(self.now_s)
            self.carry_out(first_s[1])
        self.now_s = until_s

    def arrive(self, to: str, by: str, thing) -> None:
        seat = self.seats[to]
        if isinstance(thing, Fetch):
            records = self.seats[by].follower.chain
            assert records is not None
        elif isinstance(thing, ANSWERS):
            seat.answered(peer(by), thing, self.now_s)
        else:
            seat.asked(peer(by), thing, self.now_s)
        self.carry_out(to)

    def carry_out(self, name: str) -> None:
        for action in self.seats[name].actions():
            match action:
                case Persist(entry=entry):
                    self.nodes[name].log.append(entry)
                case Ask(to=to, message=message) | Reply(to=to, message=message):
                    self.post(name, self.named(to), message)
                case Fetch(to=to, height=height):
                    self.fetched(name, self.named(to), height)
                case Leading() | Deposed() | RecordDecided() | VotesMissing():
                    self.said[name].append((self.now_s, action))

    def fetched(self, name: str, holder: str, height: int) -> None:
        """The holder's file, as far as its chain goes."""
        entries = [getattr(entry, "record", entry) for entry in self.nodes[holder].log]
        head = self.seats[holder].follower.chain.head.height
        for at in range(height, head):
            records = [entry for entry in entries if getattr(entry, "height", None) == at]
            self.seats[name].learned(records[-1], self.now_s)
        self.carry_out(name)

    def post(self, by: str, to: str, message) -> None:
        delay_s = 0.0 if by == to else LATENCY_S
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), to, by, message))

    def named(self, raw: bytes) -> str:
        return next(name for name in self.nodes if peer(name) == raw)

    def leaders(self) -> list[str]:
        return [n for n, seat in self.seats.items() if seat.leader and seat.leader.leads]

    def decide(self, name: str) -> None:
        seat = self.seats[name]
        record = commit(seat.leader.head, name, seat.leader.attempt.term)
        seat.propose(record, self.now_s)
        self.carry_out(name)
        self.run(self.now_s + 1.0)

    def kill(self, name: str) -> None:
        self.away.add(name)
        for other, seat in self.seats.items():
            if other != name:
                seat.link_lost(peer(name), self.now_s)


def begun(trainers: str = "ab", voters: str = "abc") -> Town:
    town = Town(trainers, voters)
    town.seats["a"].standby.start(0.0)
    town.run(1.0)
    assert town.leaders() == ["a"]
    return town


def taken_over_s(town: Town, name: str) -> float:
    return next(at_s for at_s, action in town.said[name] if isinstance(action, Leading))


def test_a_founder_leads_at_once_and_stays():
    town = begun()

    town.decide("a")
    town.run(60.0)

    assert town.leaders() == ["a"]
    assert [type(action) for _, action in town.said["a"]] == [Leading, RecordDecided]
    assert [seat.follower.chain.head.height for seat in town.seats.values()] == [1, 1, 1]


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
    assert town.seats["a"].follower.chain.head.height == 2


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
    assert town.seats["a"].follower.chain.head.height == 2


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

    assert town.seats["b"].follower.chain.head.height == 3
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

    town.seats["b"].answered(peer("c"), Denied(town.genesis.run, bytes(8), 1, 1, 0), 1.0)

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

    seat.asked(peer("b"), Propose(town.genesis.run, 9, record), town.now_s)

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

    seat.asked(peer("a"), Prepare(town.genesis.run, seat.leader.attempt.term, bytes(16)), 0.0)

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
