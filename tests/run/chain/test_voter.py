"""A server's vote: what it answers, what is on its disk before, whom it follows, what it learns."""

import pytest
from core import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from run.chain.harness import RUN, chain_of, commit, genesis, peer, voter

from p2pswarm.run.chain.acceptor import ChainAcceptor
from p2pswarm.run.chain.actions import Fetch, Followed, Persist, Reply
from p2pswarm.run.chain.chain import ChainHead, Fork
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import (
    TERM_JUMP_MAX,
    Accepted,
    Denial,
    Denied,
    HandOver,
    Heartbeat,
    Prepare,
    Propose,
)
from p2pswarm.run.chain.record import digest
from p2pswarm.run.chain.voter import ChainVoter

GENESIS = genesis("ab", "abc")
_, RECORDS = chain_of(5, GENESIS)
RIVAL = commit(ChainHead.of(RECORDS[1]), "b", term=2)
ME = voter("c")
MEMORY = ME.memory
TRAINERS = st.sampled_from([peer(name) for name in "abcx"])
TERMS = st.integers(0, 4)


def fresh(disk: MemoryChain | None = None) -> ChainVoter:
    restored = (disk or MemoryChain(MEMORY)).restored(GENESIS)
    return ChainVoter(ME, restored)


def beat(height: int, term: int = 1, record=None) -> Heartbeat:
    of = record or (RECORDS[height - 1] if height else None)
    return Heartbeat(RUN, term, height, digest(of) if of else bytes(32))


class VoterSeatMachine(RuleBasedStateMachine):
    """Calls in any order, doubled and from anybody, and restarts between them."""

    @initialize()
    def begin(self):
        self.disk = MemoryChain(MEMORY)
        self.now_s = 0.0
        self.height = self.term = 0
        self.start()

    @rule()
    def start(self):
        self.seat = fresh(self.disk)
        restored = self.disk.restored(GENESIS)
        self.plain = ChainAcceptor(ME, self.seat.learner.chain, restored.register)
        # that the accepted record is decided is not written down: the next call tells it again
        assert self.seat.learner.chain.head.height >= self.height - 1
        self.height, self.term = self.seat.learner.chain.head.height, 0

    @rule(by=TRAINERS, term=TERMS, attempt=st.integers(0, 1))
    def prepare(self, by, term, attempt):
        self.call(by, Prepare(RUN, term, bytes([attempt]) * 16))

    @rule(by=TRAINERS, term=TERMS, record=st.sampled_from([*RECORDS, RIVAL]))
    def propose(self, by, term, record):
        self.call(by, Propose(RUN, term, record))

    @rule(by=TRAINERS, term=TERMS, height=st.integers(0, 5))
    def heartbeat(self, by, term, height):
        self.call(by, beat(height, term))

    @rule(number=st.integers(0, 4))
    def learn(self, number):
        if RECORDS[number].height == self.seat.learner.chain.head.height:
            self.seat.on_record(RECORDS[number], self.now_s)
            self.carry_out()

    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def wait(self, seconds):
        self.now_s += seconds

    @rule(by=TRAINERS)
    def lose(self, by):
        self.seat.link_lost(by, self.now_s)
        self.plain.link_lost(by)

    def call(self, by, message):
        self.plain.receive(by, message, self.now_s)
        expected = self.plain.actions()
        try:
            said_yes = self.seat._vote(by, message, self.now_s)
        except Fork:
            said_yes = True
        actions = self.carry_out()
        assert [a for a in actions if a in expected] == expected
        assert sum(isinstance(a, Reply) for a in actions) == 1
        assert said_yes != any(isinstance(getattr(a, "message", None), Denied) for a in actions)
        if said_yes and not isinstance(message, Prepare):
            assert self.seat.led_by[1] >= message.term

    def carry_out(self):
        actions = self.seat.actions()
        for action in actions:
            match action:
                case Persist(entry=entry):
                    self.disk.append(entry)
                case Reply(message=Accepted(digest=accepted)) if accepted != bytes(32):
                    register = self.disk.restored(GENESIS).register
                    assert digest(register.accepted) == accepted
                case Fetch(height=height):
                    assert height == self.seat.learner.chain.head.height
        return actions

    @invariant()
    def the_chain_only_grows_and_the_disk_has_all_of_it(self):
        if not hasattr(self, "seat"):
            return
        head = self.seat.learner.chain.head
        assert head.height >= self.height
        self.height = head.height
        assert self.seat.led_by[1] >= self.term
        self.term = self.seat.led_by[1]
        restored = self.disk.restored(GENESIS)
        assert restored.register == self.seat.acceptor.register
        assert len(list(self.disk.records(0, head.height))) == head.height


TestVoterSeat = VoterSeatMachine.TestCase
TestVoterSeat.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


def test_a_record_is_on_the_disk_before_it_is_accepted():
    seat = fresh()

    assert seat._vote(peer("a"), Propose(RUN, 1, RECORDS[0]), 0.0)

    kept, reply, followed = seat.actions()
    assert kept == Persist(Propose(RUN, 1, RECORDS[0]))
    assert isinstance(reply.message, Accepted)
    assert seat.led_by == (peer("a"), 1)
    assert followed == Followed(peer("a"), 1)


def test_a_leader_is_told_of_once():
    seat = fresh()
    for _ in range(2):
        seat.on_call(peer("a"), beat(0), 0.0)
    seat.on_call(peer("b"), beat(0, term=2), 0.0)

    told = [action for action in seat.actions() if isinstance(action, Followed)]
    assert told == [Followed(peer("a"), 1), Followed(peer("b"), 2)]


def test_the_next_proposal_proves_that_the_accepted_record_is_decided():
    seat = fresh()
    seat._vote(peer("a"), Propose(RUN, 1, RECORDS[0]), 0.0)

    seat._vote(peer("a"), Propose(RUN, 1, RECORDS[1]), 0.0)

    assert seat.learner.chain.last == RECORDS[0]


def test_a_record_that_follows_unknown_ones_has_them_fetched():
    seat = fresh()

    seat._vote(peer("a"), Propose(RUN, 1, RECORDS[2]), 0.0)

    assert seat.actions()[-1] == Fetch(peer("a"), 0)


def test_what_is_missing_is_fetched_from_who_decided_it():
    seat = fresh()

    seat.on_call(peer("a"), beat(2), 0.0)
    assert seat.actions()[-1] == Fetch(peer("a"), 0)
    for record in RECORDS[:2]:
        seat.on_record(record, 0.0)

    assert seat.actions() == [Persist(record) for record in RECORDS[:2]]
    assert seat.learner.chain.head.height == 2


def test_a_promise_raises_no_term_and_a_denied_call_neither():
    seat = fresh()

    assert seat._vote(peer("b"), Prepare(RUN, 7, bytes(16)), 0.0)
    assert seat.led_by == (None, 0)

    assert not seat._vote(peer("a"), beat(0, term=3), 0.0)
    assert seat.led_by == (None, 0)
    assert seat._vote(peer("b"), beat(0, term=7), 0.0)
    assert seat.led_by == (peer("b"), 7)


def test_a_fork_is_told_and_the_answer_still_stands():
    seat = fresh()
    for record in RECORDS[:3]:
        seat.on_record(record, 0.0)
    seat.actions()

    with pytest.raises(Fork):
        seat.on_call(peer("b"), beat(3, 2, RIVAL), 0.0)

    reply, _ = seat.actions()
    assert isinstance(reply.message, Accepted)
    assert seat.learner.chain.last == RECORDS[2]


def test_a_voter_of_a_server_has_no_deadline_and_asks_nothing():
    seat = fresh()

    seat.on_deadline(99.0)
    seat.on_answer(peer("a"), beat(0), 99.0)

    assert seat.next_deadline_s is None
    assert seat.actions() == []


def test_who_asks_for_the_coordinator_is_sent_to_its_successor():
    seat = fresh()
    seat.on_call(peer("a"), beat(0, term=2), 1.0)

    seat.on_call(peer("a"), HandOver(RUN, 2, peer("b")), 2.0)

    assert seat.led_by == (peer("b"), 2)
    assert [action for action in seat.actions() if isinstance(action, Followed)] == [
        Followed(peer("a"), 2)
    ]


def test_a_voter_that_was_away_for_long_fetches_before_it_follows():
    seat = fresh()
    far = Heartbeat(RUN, TERM_JUMP_MAX + 1, 0, bytes(32))

    seat.on_call(peer("a"), far, 100.0)

    reply, fetch = seat.actions()
    assert (reply.message.why, fetch) == (Denial.JUMP, Fetch(peer("a"), 0))
    assert seat.led_by == (None, 0)
