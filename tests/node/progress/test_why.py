"""Reports of a step's seconds and of stalls, as events and as the answer to `AskWhy`."""

from dataclasses import replace

import pytest

from p2pswarm.base.errors import NotServing
from p2pswarm.base.ids import PeerId
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.progress.why import PHASES_EVERY_S, StepReports
from p2pswarm.progress.events import Phases, Stalled, StallEnded
from p2pswarm.progress.step_seconds import ChainPart, StageTimes
from p2pswarm.run.messages.status import PeerName
from p2pswarm.run.messages.waits import (
    AskWhy,
    ChainLink,
    JourneyPart,
    RunWhy,
    StageSeconds,
    StepSeconds,
)
from p2pswarm.trainer.reports.reports import RunBegun, StepDone
from p2pswarm.trainer.reports.step_seconds import StallCause, Stalling, StallOver, StepTimed

RUN, ANN = b"r" * 16, b"a" * 32
SHORT = PeerId(ANN).short
ROW = StageSeconds(1, StepSeconds(1.0, 0.0, 0.0, 0.50001, 0.25, 0.25), ANN)
TIMED = StepTimed(4, 2.0, (ROW,), (ChainLink(JourneyPart.FORWARD, 0, ANN, 2.0),))
WHY = f"{SHORT} of stage 0 computes microbatch 7 for 5.0 s"
STALLING = Stalling(5, 6.2, 2.0, StallCause.COMPUTING, (ANN,), (0,), WHY)
DONE = StepDone(5, 1.0, 1.0, 0.1, 8)


def answered(reports: StepReports, now_s: float) -> RunWhy:
    answer = reports.answer(AskWhy(RUN), now_s)
    assert decode(encode(answer)) == answer
    return answer


def test_the_seconds_of_a_step_are_an_event_of_the_step_as_people_count():
    reports = StepReports(RUN)
    reports.on_report(RunBegun(), 10.0)

    assert reports.on_report(TIMED, 20.0) == [
        Phases(
            5,
            2.0,
            (StageTimes(1, 1.0, 0.0, 0.25, 0.25, 0.5, 0.0, SHORT),),
            (ChainPart("forward", 0, SHORT, 2.0),),
            seconds=10.0,
        )
    ]


def test_of_short_steps_some_are_told_and_the_answer_has_the_newest():
    reports = StepReports(RUN)
    told = [reports.on_report(TIMED, 0.1 * number) for number in range(31)]

    assert sum(map(len, told)) == 1 + 3.0 / PHASES_EVERY_S
    assert answered(reports, 3.1).step == 5


def test_a_stall_and_its_end_are_events_and_the_answer_has_it_while_it_lasts():
    reports = StepReports(RUN)
    reports.on_report(RunBegun(), 0.0)

    (stalled,) = reports.on_report(STALLING, 6.2)

    assert stalled == Stalled(6, 6.2, 2.0, "computing", (SHORT,), (0,), WHY, seconds=6.2)
    assert stalled.text == f"step 6 takes 6.2 s, usually 2.0 s: {WHY}"
    assert answered(reports, 7.0).stalled == stalled.text
    assert answered(reports, 7.0).under_way_s == 7.0
    assert reports.on_report(DONE, 9.0) == []
    (ended,) = reports.on_report(StallOver(5, 9.0), 9.0)
    assert ended == StallEnded(6, 9.0, seconds=9.0)
    assert ended.text == "step 6 is done after 9.0 s: the run goes on"
    assert answered(reports, 10.0).stalled == ""


def test_before_a_step_was_measured_the_answer_says_so():
    assert answered(StepReports(RUN), 5.0) == RunWhy(0, 0.0, None, 0.0, (), (), "")


def test_the_answer_has_the_names_of_the_machines_that_it_is_about():
    reports, bob = StepReports(RUN), b"b" * 32
    reports.on_report(replace(TIMED, stages=(ROW, replace(ROW, slowest=bob))), 20.0)

    answer = reports.answer(AskWhy(RUN), 21.0, {ANN: "attic", bob: ""}.__getitem__)

    assert decode(encode(answer)) == answer
    assert answer.names == (PeerName(ANN, "attic"),)


def test_another_run_is_not_told():
    with pytest.raises(NotServing):
        StepReports(RUN).answer(AskWhy(b"x" * 16), 0.0)
