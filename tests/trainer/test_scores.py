"""References before the first step, and what servers tell of pairs: rules of the coordinator."""

import dataclasses
import math

import pytest
from trainer.harness import CONFIG, Play

from p2pswarm.base.errors import BadMessage
from p2pswarm.progress.events import HeldOut
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.microbatch import Evaluated
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.settings.objective import ObjectiveConfig
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE, REFERENCE_BASE

PAIRS = dataclasses.replace(
    CONFIG,
    batch=BatchConfig(
        microbatches=2, rows=4, samples="whole", evaluate_every=1, evaluate_microbatches=2
    ),
    objective=ObjectiveConfig(name="dpo"),
)
SCORES = -1.0, -2.0, -3.0, -3.5


def scoring(config: RunConfig = PAIRS, batches: tuple[int, ...] = (1, 4)) -> Play:
    return Play(config, start=CoordinatorStart(references=batches))


def evaluated(play: Play, by, number: int, scores=SCORES) -> None:
    play.coordinator.on_evaluation(by, Evaluated(0, number, 1.0, scores), play.now_s)


@pytest.mark.parametrize("delay", [0, 1])
def test_nothing_else_is_launched_before_the_references_are_there(delay: int):
    play = scoring(dataclasses.replace(PAIRS, delay=delay))
    ann = play.serve("a")
    due = [REFERENCE_BASE + 1, REFERENCE_BASE + 4]
    launched = play.seen(act.Launch)
    assert [(one.microbatch, one.work) for one in launched] == [(n, Work.EVALUATE) for n in due]

    evaluated(play, ann, due[1])
    assert play.seen(act.Launch | act.KeepReferences) == [act.KeepReferences(4, SCORES)]
    evaluated(play, ann, due[1], (-9.0,) * 4)  # told twice: the first word counts
    assert play.seen(act.KeepReferences) == []
    evaluated(play, ann, due[0])

    seen = play.seen(act.Launch | act.KeepReferences)
    assert seen[0] == act.KeepReferences(1, SCORES)
    numbers = [one.microbatch for one in seen[1:]]
    assert numbers == [EVALUATION_BASE, EVALUATION_BASE + 1, 0, 1]


@pytest.mark.parametrize(
    "scores",
    [
        (),
        SCORES[:3],
        (*SCORES, -1.0),
        (math.nan, *SCORES[1:]),
        (-math.inf, *SCORES[1:]),
        (2e9,) * 4,
    ],
)
@pytest.mark.parametrize("number", [REFERENCE_BASE + 1, EVALUATION_BASE])
def test_scores_that_cannot_be_are_no_message(scores: tuple[float, ...], number: int):
    play = scoring(batches=() if number == EVALUATION_BASE else (1,))
    ann = play.serve("a")

    with pytest.raises(BadMessage, match="scores of a batch where 4 finite ones are due"):
        evaluated(play, ann, number, scores)
    assert play.seen(act.KeepReferences) == []


def test_a_run_of_tokens_takes_no_scores():
    batch = dataclasses.replace(CONFIG.batch, evaluate_every=1)
    play = Play(dataclasses.replace(CONFIG, batch=batch))
    ann = play.serve("a")

    with pytest.raises(BadMessage, match="4 scores of a batch where 0"):
        evaluated(play, ann, EVALUATION_BASE)


def test_with_the_held_out_loss_stands_how_often_the_chosen_answer_is_preferred():
    play = scoring(batches=())
    ann = play.serve("a")
    evaluated(play, ann, EVALUATION_BASE, (-1.0, -2.0, -4.0, -3.5))
    evaluated(play, ann, EVALUATION_BASE + 1, (-1.0, -1.0, -3.0, -3.5))
    play.count(ann, 0, 1)
    play.told_reduced(ann, 1)

    (found,) = play.seen(HeldOut)
    assert found == HeldOut(0, 1.0, 0.5)
    assert found.text.endswith(
        "held-out loss 1.0000 nats/pair, 50.0% of the chosen answers preferred"
    )
    assert HeldOut(0, 1.0).text.endswith("1.0000 nats/token")


def test_a_batch_without_finite_references_ends_the_run_with_its_place():
    play = scoring()
    ann = play.serve("a")
    batch = play.coordinator._step._closing
    assert batch.hopeless() is None

    batch.result_checks.aside.add(REFERENCE_BASE + 4)

    assert batch.hopeless() == (
        "answers 16 and after have no finite references: look at the model's first weights"
    )
    assert ann
