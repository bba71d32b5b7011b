"""The coordinator of a tied model: both ends average one tensor, and have to agree about it."""

import dataclasses

import pytest
from trainer.harness import CONFIG, Play

from p2pswarm.run.messages.step import TiedReduced
from p2pswarm.settings.config import ModelConfig
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import RunFinished, StepDone

TIED = dataclasses.replace(CONFIG, stages=3, model=ModelConfig(tie=True))
SAID = TiedReduced(b"t", 9.0, b"s")


class Ends(Play):
    """Ann serves the first stage, Bob the middle, Cid and Dan the last; all is counted."""

    def __init__(self) -> None:
        super().__init__(TIED)
        self.ann, self.bob, self.cid = (self.serve(name) for name in "abc")
        self.dan = self.join("d", stage=2)
        self.ready(self.dan)
        self.tied = dict.fromkeys((self.ann, self.cid, self.dan), SAID)
        for one in (self.ann, self.bob, self.cid):
            self.count(one, 0, 1)

    def answer(self) -> list:
        """All answer; what the coordinator asks for then."""
        self.reduce(self.ann, self.bob, self.cid, self.dan)
        return self.coordinator.drain()


def of(kind: type, actions: list) -> list:
    return [one for one in actions if isinstance(one, kind)]


def test_the_tied_tensor_is_once_in_the_norm_of_the_decision():
    play = Ends()

    (decided,) = of(StepDone, play.answer())

    assert decided.gradient_norm == pytest.approx((3 * 1.0 + 9.0) ** 0.5)


def test_ends_with_different_tied_tensors_end_the_run_with_the_remedy():
    play = Ends()
    play.tied[play.ann] = TiedReduced(b"t", 9.0, b"damaged")

    (over,) = of(RunFinished, play.answer())

    assert over.failed
    assert "tied tensor of stages 0 and 2 is not the same" in over.reason
    assert "--resume" in over.reason


@pytest.mark.parametrize("said", [None, TiedReduced(b"t", -1.0, b"s")])
def test_an_end_that_says_nothing_sound_of_the_tied_tensor_is_out(said):
    play = Ends()
    play.tied[play.dan] = said

    actions = play.answer()

    assert [one.incarnation for one in of(act.Evict, actions)] == [play.dan]
    assert not of(StepDone, actions)


def test_a_member_that_is_lost_ends_the_averaging_of_both_ends():
    play = Ends()
    orders = play.seen(act.SendReduce)
    both = {one.message.tied.group for one in orders if one.message.tied}
    play.lose(play.dan)

    assert both == {tuple(sorted(one.peer for one in (play.ann, play.cid, play.dan)))}
    play.promise(play.ann, play.bob, play.cid)
    again = play.seen(act.SendReduce)
    assert {one.message.tied.group for one in again if one.message.tied} == {
        (play.ann.peer, play.cid.peer)
    }
    assert again[0].message.generation > orders[0].message.generation


def test_a_cut_between_two_servers_that_are_alone_at_their_ends_costs_no_sum():
    """Nobody else could do their work; they average when the road is there again."""
    play = Ends()
    play.lose(play.dan)
    play.promise(play.ann, play.bob, play.cid)
    for _ in range(6):
        generation = play.seen(act.SendReduce)[-1].message.generation
        play.coordinator.on_reduction_failure(
            play.ann, generation, "cut", play.now_s, play.cid.peer
        )
        play.promise(play.ann, play.bob, play.cid)

    play.reduce(play.ann, play.bob, play.cid)

    actions = play.coordinator.drain()
    assert not of(act.Evict, actions)
    assert of(StepDone, actions)
