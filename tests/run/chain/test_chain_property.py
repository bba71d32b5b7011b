"""Leaders, voters and messages that are lost, late, doubled and out of order: still one chain.

The world judges by what voters ever accepted, and fails at once when a place is decided twice, when
a leader says decided without both majorities, or leads without knowing all that was decided.
"""

import itertools

import pytest
from core import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from run.chain.harness import back, peer, revote, voter
from run.chain.world import World

from p2pswarm.run.chain.chain import ChainHead, may_change
from p2pswarm.run.chain.leader import LeaderPhase
from p2pswarm.run.chain.record import RecordKind, digest

UNDER_WAY_MAX = 200
TERMS_MAX = 12
REACHED = ["ab", "ac", "bc", "abc", "acd", "bcd", "ade", "abe", "cde", "abcde"]
CHANGES = ["same", "abc", "abd", "abcde", "a", "cde", "ace"]


class ChainMachine(RuleBasedStateMachine):
    @initialize(voters=st.sampled_from(["a", "abc", "abcde"]))
    def begin(self, voters):
        self.world = World("ab", voters)
        self.term = 0
        self.heads = [self.world.genesis.head()]
        self.height = 0

    @precondition(lambda self: self.term < TERMS_MAX)
    @rule(name=st.sampled_from("ab"), skip=st.integers(0, 2), old=st.booleans(), data=st.data())
    def stand(self, name, skip, old, data):
        self.stands(name, skip, old, data)

    @precondition(lambda self: self.term < TERMS_MAX)
    @rule(name=st.sampled_from("ab"), old=st.booleans(), data=st.data())
    def stand_among(self, name, old, data):
        """A trainer stands, and so much as it needs arrives at once, at some of the nodes."""
        reached = data.draw(st.sampled_from(REACHED))
        number = self.stands(name, 0, old, data)
        self.world.run(reached)
        if self.world.leaders[number].leads and data.draw(st.booleans()):
            self.proposes(number, data.draw(st.sampled_from(CHANGES)), data.draw(st.booleans()))
            self.world.run(data.draw(st.sampled_from(REACHED)))

    def stands(self, name, skip, old, data) -> int:
        """A trainer stands; it may know of no decided record but an old one."""
        self.term += 1 + (skip == 2)
        own = self.world.node(name).learner.chain.head
        heads = [head for head in self.heads if head.height <= own.height] or [own]
        head = data.draw(st.sampled_from(heads)) if old else own
        return self.world.stand(name, self.term, head)

    @precondition(lambda self: self.world.under_way)
    @rule(data=st.data(), again=st.booleans())
    def deliver_any(self, data, again):
        """Anything that is under way arrives, now and perhaps once more."""
        at = data.draw(st.integers(0, len(self.world.under_way) - 1))
        thing = self.world.under_way[at] if again else self.world.under_way.pop(at)
        self.world.deliver(thing)

    @precondition(lambda self: self.world.under_way)
    @rule(count=st.integers(1, 20), without=st.sampled_from([*"abcde", ""]))
    def deliver_in_order(self, count, without):
        """What is under way arrives in its order; messages to and from one node are lost."""
        for _ in range(min(count, len(self.world.under_way))):
            thing = self.world.under_way.pop(0)
            ends = {peer(self.world.names[thing.leader]), getattr(thing, "to", None)}
            ends.add(getattr(thing, "sender", None))
            if not without or peer(without) not in ends:
                self.world.deliver(thing)

    @precondition(lambda self: self.world.under_way)
    @rule(data=st.data())
    def lose(self, data):
        self.world.under_way.pop(data.draw(st.integers(0, len(self.world.under_way) - 1)))

    @precondition(lambda self: any(leader.leads for leader in self.world.leaders))
    @rule(data=st.data(), change=st.sampled_from(CHANGES), only=st.booleans())
    def propose(self, data, change, only):
        """A leader, perhaps one that slept for long, proposes the next record."""
        leading = [n for n, leader in enumerate(self.world.leaders) if leader.leads]
        self.proposes(data.draw(st.sampled_from(leading)), change, only)
        if data.draw(st.booleans()):
            self.world.run(data.draw(st.sampled_from(REACHED)))

    def proposes(self, number, change, only):
        """The next step with these voters, or `only` the voters, if there was a step."""
        leader = self.world.leaders[number]
        if leader.pending or not leader.leads:
            return
        voters = leader.head.voters
        if change != "same":
            wanted = tuple(voter(name) for name in change)
            voters = wanted if may_change(voters, wanted) else voters
        if only and leader.head.height:
            name, term = self.world.names[number], leader.attempt.term
            leader.propose(revote(leader.head, name, term, voters=voters))
            self.world.settle(number)
        else:
            self.world.propose(number, voters=voters)

    @precondition(lambda self: any(leader.leads for leader in self.world.leaders))
    @rule(data=st.data(), depth=st.integers(1, 3))
    def go_back(self, data, depth):
        leading = [n for n, leader in enumerate(self.world.leaders) if leader.leads]
        number = data.draw(st.sampled_from(leading))
        leader = self.world.leaders[number]
        if leader.pending is None and leader.head.version >= depth:
            version = leader.head.version - depth
            name, term = self.world.names[number], leader.attempt.term
            leader.propose(back(leader.head, version, name, term))
            self.world.settle(number)

    @precondition(lambda self: self.world.leaders and len(self.world.under_way) < UNDER_WAY_MAX)
    @rule(data=st.data())
    def wake(self, data):
        """A leader asks again, however long it slept."""
        self.world.resend(data.draw(st.integers(0, len(self.world.leaders) - 1)))

    @rule(name=st.sampled_from("abcde"))
    def restart(self, name):
        """A node dies, its leader with it, and comes back with its file."""
        node = self.world.node(name)
        before = node.acceptor.register
        node.start(self.world.genesis)
        assert node.acceptor.register == before
        for leader, by in zip(self.world.leaders, self.world.names, strict=True):
            if by == name:
                leader.give_up("its process ended")

    @rule(name=st.sampled_from("cde"))
    def lose_the_disk(self, name):
        """A node comes back without its file: it is another voter, and nobody counts it."""
        node = self.world.node(name)
        node.memory += 1
        node.log.clear()
        node.start(self.world.genesis)

    @invariant()
    def decided_records_are_one_chain_that_only_grows(self):
        decided = [self.world.decided[at] for at in range(len(self.world.decided))]
        assert len(decided) >= self.height
        self.height = len(decided)
        for before, record in itertools.pairwise(decided):
            assert record.prev == digest(before)
            assert record.step <= before.version
            assert record.step == before.version or record.kind == RecordKind.BACK
        steps = [record.step for record in decided if record.kind == RecordKind.COMMIT]
        goes_back = any(record.kind == RecordKind.BACK for record in decided)
        assert goes_back or steps == list(range(len(steps)))
        self.heads = [self.world.genesis.head(), *map(ChainHead.of, decided)]

    @invariant()
    def nobody_holds_for_decided_what_is_not(self):
        for node in self.world.nodes.values():
            head = node.learner.chain.head
            assert head in self.heads
        for leader in self.world.leaders:
            if leader.phase is not LeaderPhase.OVER:
                assert leader.head in self.heads


TestChain = ChainMachine.TestCase
TestChain.settings = settings(
    max_examples=examples(60),
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("voters", ["a", "abc", "abcde"])
def test_a_run_goes_on_through_leaders_while_a_majority_lives(voters):
    world = World("ab", voters)
    for term in range(1, 6):
        name = "a" if voters == "a" else "ab"[term % 2]
        number = world.stand(name, term)
        world.run()
        world.propose(number)
        world.run()

    assert len(world.decided) == 5
    assert [node.learner.chain.head.height for node in world.nodes.values()][:1] == [5]
