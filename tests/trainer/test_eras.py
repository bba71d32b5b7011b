"""Weights of steps that were taken back are never the run's, whoever brings them."""

from dataclasses import replace

import pytest
from trainer.harness import RUN, Play

from p2pswarm.run.chain.record import first_number
from p2pswarm.run.messages.membership import HeldReduction, Join
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, DecidedStep
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.stage_digests import as_recorded

CONFIG = RunConfig(
    stages=1,
    steps=9,
    on_stage_lost="rewind",
    rewind_after_s=20.0,
    batch=BatchConfig(microbatches=2, evaluate_every=0),
)
TERM = 3
LAST = DecidedStep(5, 0.5, 0.1, {0: as_recorded(b"g")}, {0: as_recorded(b"w5")})
NAMED = CoordinatorStart(TERM, 6, gathers=False, era=2, states={0: b"w6"}, loads=True)


def assigned(start: CoordinatorStart, *, version: int, digest: bytes, era: int, held=()):
    play = Play(CONFIG, kind=Coordinator, start=start)
    join = Join(RUN, "h:1", 0, version, digest, held, era)
    play.coordinator.on_join(b"a" * 32, join, 0.0)
    (assign,) = play.seen(act.Assign)
    return assign.message


@pytest.mark.parametrize("era", [0, 1, 2, 3])
def test_weights_that_nobody_can_confirm_are_believed_only_if_they_are_of_this_era(era):
    start = CoordinatorStart(TERM, 6, LAST, gathers=False, era=2)

    message = assigned(start, version=6, digest=b"w6", era=era)

    assert message.keep == (era == 2)
    assert message.era == 2
    assert not message.loads


@pytest.mark.parametrize("era", [1, 2])
def test_a_commit_is_sent_again_only_to_weights_of_this_era(era):
    start = CoordinatorStart(TERM, 6, LAST, gathers=False, era=2)
    held = (HeldReduction(5, 7, b"g"),)

    message = assigned(start, version=5, digest=b"w5", era=era, held=held)

    assert message.keep == (era == 2)


@pytest.mark.parametrize("digest", [b"w6", b"x"])
def test_the_weights_that_the_run_has_gone_back_to_are_kept_whatever_their_era(digest):
    message = assigned(NAMED, version=6, digest=digest, era=1)

    assert message.keep == (digest == b"w6")
    assert message.loads == (digest != b"w6")
    assert message.state == b"w6"


def test_a_newcomer_loads_only_the_version_that_is_in_the_checkpoint():
    start = replace(NAMED, states={}, loads=False)

    assert not assigned(start, version=5, digest=b"x", era=0).loads


def test_lives_after_going_back_have_numbers_of_their_own():
    play = Play(CONFIG, kind=Coordinator, start=CoordinatorStart(TERM, 6, LAST, gathers=False))
    for name in "abc":
        play.join(name)
    assert play.coordinator.numbered == first_number(TERM) + 3

    again = Play(CONFIG, start=replace(NAMED, numbered=play.coordinator.numbered))

    assert again.join("a").number == first_number(TERM) + 4


def lost(start: CoordinatorStart) -> Play:
    """A coordinator whose only stage has had no server for as long as it waits."""
    play = Play(CONFIG, kind=Coordinator, start=start)
    ann = play.join("a", stage=0, version=6, digest=b"w6")
    play.coordinator.on_deadline(0.0)
    play.lose(ann)
    play.now_s = 20.0
    play.coordinator.on_deadline(20.0)
    return play


def test_a_run_that_has_lost_its_weights_asks_to_go_back_and_may():
    play = lost(CoordinatorStart(TERM, 6, LAST, gathers=False))

    assert play.seen(act.GoBack) == [act.GoBack()]
    assert play.coordinator.may_go_back


def test_a_run_does_not_go_back_once_a_server_has_brought_the_weights():
    play = lost(CoordinatorStart(TERM, 6, LAST, gathers=False))

    play.join("b", stage=0, version=6, digest=b"w6")

    assert not play.coordinator.may_go_back


@pytest.mark.parametrize(
    "start", [replace(NAMED, states={}), CoordinatorStart(TERM, 0, gathers=False)]
)
def test_a_run_does_not_go_back_while_whoever_comes_loads_or_draws_the_weights(start):
    play = lost(start)

    assert not play.coordinator.may_go_back


def test_a_run_that_is_held_does_not_go_back():
    play = lost(CoordinatorStart(TERM, 6, LAST, gathers=False))

    play.coordinator.hold()

    assert not play.coordinator.may_go_back
