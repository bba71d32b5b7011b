"""Two records in one place of a chain: how a new leader learns which of them was decided."""

import pytest
from run.chain.harness import voter
from run.chain.world import World

from p2pswarm.run.chain.leader import Leader
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.chain.record import digest


class AsksNobodyAgainOnceItHasCaughtUp(Leader):
    def on_head(self, head):
        self.head = head
        self._anchor(self._best())


class AsksItselfAtOnce(Leader):
    """Its own voter may accept what all others deny; safety asks for no order."""

    def _ask_to_accept(self):
        record = self.pending
        message = Propose(self._genesis.run, self.attempt.term, record)
        for each in dict.fromkeys((*record.voters_before, *record.voters)):
            if each not in self._accepted:
                self._ask(each, message)


def rival_of_a_decided_record(kind: type[Leader]) -> World:
    """a proposes a record that only e accepts; b decides another; a stands with its first head."""
    world = World("ab", "abc")
    first_head = world.genesis.head()
    old = world.stand("a", 1, kind=AsksItselfAtOnce)
    world.run()
    world.propose(old, voters=tuple(voter(name) for name in "abd"))
    world.run("abd")
    world.propose(old, voters=tuple(voter(name) for name in "abe"))
    world.run("ae")
    new = world.stand("b", 2)
    world.run("bd")
    world.propose(new)
    world.run("bd")
    assert len(world.decided) == 2
    world.stand("a", 3, first_head, kind)
    world.run("ace")
    for name in "bd":
        world.node(name).start(world.genesis)  # so none remembers that its record was decided
    return world


def test_the_voters_before_a_record_show_its_rival():
    world = rival_of_a_decided_record(Leader)

    world.resend(2)
    world.run()

    assert world.leaders[2].head.digest == digest(world.decided[1])


def test_without_them_a_place_is_decided_twice():
    world = rival_of_a_decided_record(AsksNobodyAgainOnceItHasCaughtUp)
    world.resend(2)

    with pytest.raises(AssertionError, match="decided twice"):
        world.run()
