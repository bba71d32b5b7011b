"""A push that asks the keeper first, and then whom a router chooses."""

from run.test_push import member

from p2pswarm.base.errors import Busy, DialFailed, LinkLost, NotServing
from p2pswarm.run.messages.microbatch import Receipt
from p2pswarm.run.push import (
    PushProgress,
    PushState,
    PushTimes,
    keeper_among,
    keepers_for,
)

KEEPER, OTHER = member(1), member(2)


class Heard:
    """A router with one server that notes what it is told."""

    others_may_come = True

    def __init__(self):
        self.told = []

    def choose(self, now_s):
        return OTHER

    def settle(self, peer, times: PushTimes):
        self.told.append(("settle", peer))

    def over(self, peer, chosen_s):
        self.told.append(("over", peer))

    def busy(self, peer, now_s, retry_after_s):
        self.told.append(("busy", peer))

    def refused(self, peer, now_s):
        self.told.append(("refused", peer))

    def failed(self, peer, now_s):
        self.told.append(("failed", peer))

    def lost(self, peer, now_s):
        self.told.append(("lost", peer))

    def nobody_reached(self, now_s):
        return True

    def free_at_s(self):
        return None


def test_the_keeper_is_asked_first_and_the_router_hears_nothing_of_it():
    router = Heard()
    progress = PushProgress(router, "nobody", 0.0, keeper=KEEPER)

    assert progress.choose(0.0) is KEEPER
    assert progress.asks_keeper
    progress.granted(0.1)
    progress.sent(0.1)
    progress.computed(0.2, Receipt(0.0, 0.0))
    progress.ended(1.0)

    assert progress.state is PushState.DONE
    assert router.told == []


def test_after_a_refusal_the_router_chooses():
    for error in (Busy("full", 0.5), NotServing("gone"), DialFailed("dead")):
        router = Heard()
        progress = PushProgress(router, "nobody", 0.0, keeper=KEEPER)
        progress.choose(0.0)

        progress.failed(error, 0.1)
        progress.ended(1.0)

        assert progress.choose(0.1) is OTHER
        assert not progress.asks_keeper
        assert router.told == []


def test_what_the_router_chose_it_hears_of():
    router = Heard()
    progress = PushProgress(router, "nobody", 0.0)
    progress.choose(0.0)

    progress.failed(LinkLost("cut"), 0.1)
    progress.ended(1.0)

    assert router.told == [("lost", OTHER.peer), ("over", OTHER.peer)]


def test_who_is_not_asked_as_the_keeper_is_not_named():
    keepers = (b"a", b"b", b"c")

    assert keepers_for(keepers, 1, asked=True) == keepers
    assert keepers_for(keepers, 1, asked=False) == (b"a", b"", b"c")
    assert keepers_for((), 1, asked=False) == ()


def test_a_keeper_is_one_that_is_there():
    keepers = (b"", KEEPER.peer)

    assert keeper_among(keepers, 1, (OTHER, KEEPER)) is KEEPER
    assert keeper_among(keepers, 1, (OTHER,)) is None
    assert keeper_among(keepers, 0, (OTHER, KEEPER)) is None
    assert keeper_among(keepers, 2, (OTHER, KEEPER)) is None
