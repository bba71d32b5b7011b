"""A long record is not sent again to a voter that is still receiving it; all else is."""

from dataclasses import replace

import pytest
from run.chain.harness import RUN, commit, genesis, peer, stage_commit, unsigned

from p2pswarm.run.chain.actions import Ask
from p2pswarm.run.chain.chain_node import ASK_S, LONG_ASK_S, OpenAsks
from p2pswarm.run.chain.messages import Heartbeat, Propose

LONG = unsigned(genesis().head(), 1, stages=(stage_commit(0, 1, holders=bytes(61_000)),))
SHORT = Ask(peer("b"), Propose(RUN, 1, commit(genesis().head())))
BEAT = Ask(peer("b"), Heartbeat(RUN, 1, 0, bytes(32)))


def ask(to: str = "b", term: int = 1, **changes) -> Ask:
    return Ask(peer(to), Propose(RUN, term, replace(LONG, **changes)))


@pytest.mark.parametrize("short", [SHORT, BEAT])
def test_what_fits_a_frame_is_asked_again_each_second(short):
    asks = OpenAsks()

    assert [asks.begin(short), asks.begin(short)] == [ASK_S, ASK_S]
    asks.end(short)


def test_a_long_record_is_under_way_once_until_its_call_is_over():
    asks = OpenAsks()

    assert asks.begin(ask()) == LONG_ASK_S
    assert asks.begin(ask()) is None
    asks.end(ask())

    assert asks.begin(ask()) == LONG_ASK_S


def test_another_voter_another_term_and_another_record_are_asked_beside_it():
    asks = OpenAsks()
    asks.begin(ask())

    for other in (ask("c"), ask(term=2), ask(loss=0.5), SHORT):
        assert asks.begin(other) is not None
