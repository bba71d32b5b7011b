"""Reports of trouble, told to people in one line that says what can be done."""

from typing import get_args

import pytest

from p2pswarm.base.ids import PeerId
from p2pswarm.node.progress.reporter import Reporter
from p2pswarm.node.progress.trouble import TroubleReport, trouble_text
from p2pswarm.progress.events import Note
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.stage_coverage import LastLeaves
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.leadership_reports import VotesLacking
from p2pswarm.trainer.reports.rollback_reports import CannotGoBack, NewestCopy
from p2pswarm.trainer.step.sums import SumKept, SumVoided

ANN, BOB = Incarnation(bytes([1]) * 32, 1), Incarnation(bytes([2]) * 32, 2)
A, B = PeerId(ANN.peer).short, PeerId(BOB.peer).short

TEXTS = [
    (
        act.VersionsRefused(1, (2,), 1),
        "1 server speaks version 2 of runs, this trainer 1: install the same release on both sides",
    ),
    (
        act.VersionsRefused(3, (2, 3), 1),
        (
            "3 servers speak versions 2, 3 of runs, this trainer 1: "
            "install the same release on both sides"
        ),
    ),
    (
        SumKept(3, ANN, Incarnation(ANN.peer, 5), 1, 7),
        f"server {A} of stage 1 is back: what it had counted of the step stands (7)",
    ),
    (
        SumVoided(ANN, 1, "it did not come back in time", 7),
        f"server {A} of stage 1: it did not come back in time; its 7 microbatches count anew",
    ),
    (
        act.WeightsSought(1, 7, ANN, "10.0.0.1:4000"),
        (
            f"the weights of stage 1 (version 7) were last at server {A}, 10.0.0.1:4000: "
            "start it again if it stands still"
        ),
    ),
    (
        NewestCopy((1,), 7, 5, "checkpoints/x", 31.4, None),
        (
            "no server has brought back the weights of stage 1: the newest copy is the checkpoint "
            "of step 5, 31 s old, in checkpoints/x; to go on from there, stop this trainer and "
            "start it with --resume"
        ),
    ),
    (
        NewestCopy((0, 1), 7, 5, "checkpoints", None, 55.0),
        (
            "no server has brought back the weights of stages 0, 1: the newest copy is the "
            "checkpoint of step 5, in checkpoints; the run goes back to it in 55 s"
        ),
    ),
    (
        NewestCopy((1,), 7, None, "checkpoints", None, 55.0),
        (
            "no server has brought back the weights of stage 1: there is no checkpoint yet in "
            "checkpoints; the run goes back to its first weights in 55 s"
        ),
    ),
    (
        NewestCopy((1,), 7, None, "", None, None),
        (
            "no server has brought back the weights of stage 1: the run has no checkpoints "
            "(checkpoint.target); the run waits for a server that has them"
        ),
    ),
    (CannotGoBack("x is gone"), "no checkpoint to go back to: x is gone"),
    (
        LastLeaves(1, 7, ANN, 20.0),
        (
            f"the last server of stage 1, {A}, leaves in 20 s at most: without another server by "
            "then, version 7 of its weights is lost, and no checkpoint.target is set"
        ),
    ),
    (
        LastLeaves(1, 7, ANN, 20.0, saved=True),
        (
            f"the last server of stage 1, {A}, leaves in 20 s at most: a checkpoint of step 7 is "
            "being written; start another server of this stage"
        ),
    ),
    (
        act.DigestsTied(0, 3),
        (
            "the servers of stage 0 disagree about version 3, as many on each side; "
            "the first goes on: a third server would tell which is wrong"
        ),
    ),
    (
        act.BeganWrong(1),
        (
            "stage 1 began with other weights than its run begins with: a server made them wrong, "
            "and was alone; begin the run again for the right ones"
        ),
    ),
    (
        act.AveragingSlow(3, 120.0, 240.0),
        "averaging step 3 took longer than 120 s; the next try may take 240 s",
    ),
    (
        act.ServerFails(ANN, 1, 3, "no memory", 10.0),
        f"server {A} of stage 1 failed 3 times in a row (no memory): it gets no work for 10 s",
    ),
    (
        act.ServerFails(ANN, 1, 3, "no memory", None),
        (
            f"server {A} of stage 1 failed 3 times in a row (no memory) and no other serves its "
            "stage: start another"
        ),
    ),
    (
        act.Quarantined(4, 70, "a gradient is not finite", held_out=False),
        (
            "microbatch 70 of step 5 is not finite on any server (a gradient is not finite): "
            "it counts as zeros"
        ),
    ),
    (
        act.Quarantined(4, 2**61, "it holds NaN", held_out=True),
        "a held-out batch has no loss (it holds NaN)",
    ),
    (
        act.NotFiniteThere(4, 70, ((ANN, 1),), "the loss is nan"),
        (
            f"microbatch 70 of step 5 was not finite with server {A} of stage 1 "
            "(the loss is nan), and was with others: look at that machine if it comes again"
        ),
    ),
    (
        act.NotFiniteThere(4, 70, ((ANN, 1), (BOB, 2)), "the loss is nan"),
        (
            f"microbatch 70 of step 5 was not finite with one of server {A} of stage 1, server {B} "
            "of stage 2 (the loss is nan), and was with others: look at that machine if it comes "
            "again"
        ),
    ),
    (
        act.WrongResult(ANN, 1, 70, "it lied", 10.0),
        (
            f"server {A} of stage 1 computes wrong (microbatch 70: it lied); the step is done "
            "again, and it gets no work for 10 s: look at that machine"
        ),
    ),
    (
        act.WrongResult(ANN, 1, 70, "it lied", None),
        (
            f"server {A} of stage 1 computes wrong (microbatch 70: it lied); the step is done "
            "again, and no other serves its stage: start another, and look at that machine"
        ),
    ),
    (
        act.ResultsTied(70, 1, (ANN, BOB)),
        (
            f"the servers {A}, {B} of stage 1 make different results of microbatch 70: "
            "a third server would tell which is wrong"
        ),
    ),
    (
        VotesLacking(((ANN.peer, "10.0.0.7:4001"), (BOB.peer, ""))),
        (
            f"nothing can be decided without an answer of {A} at 10.0.0.7:4001, {B}: start them "
            "again with their `state` folders, or go on from a checkpoint with `p2pswarm train "
            "--resume`"
        ),
    ),
    (
        act.RoadBroken(ANN, BOB, 1, 3, "it was late"),
        (
            f"microbatches do not get through between server {A} of stage 0 and server {B} of "
            "stage 1, 3 times in a row (it was late): look at their network"
        ),
    ),
    (
        act.RoadBroken(None, BOB, 2, 3, "it was late"),
        (
            f"microbatches do not get through between stage 1 and server {B} of stage 2, "
            "3 times in a row (it was late): look at their network"
        ),
    ),
    (
        act.RoadBroken(None, BOB, 0, 3, "it was late"),
        (
            f"microbatches do not get through between the trainer and server {B} of stage 0, "
            "3 times in a row (it was late): look at their network"
        ),
    ),
]


def test_each_kind_of_report_has_a_text():
    assert {type(report) for report, _ in TEXTS} == set(get_args(TroubleReport))


@pytest.mark.parametrize(("report", "text"), TEXTS)
def test_every_trouble_is_a_line(report: TroubleReport, text: str):
    assert trouble_text(report) == text


@pytest.mark.parametrize("report", [report for report, _ in TEXTS])
def test_the_reporter_tells_it(report: TroubleReport):
    (event,) = Reporter(RunConfig(), 1000).report(report, 5.0)

    assert isinstance(event, Note)
