"""The reports of the coordinator: each is a sentence that says what can be done, or a figure."""

import pytest

from p2pswarm.node.progress.reporter import Reporter
from p2pswarm.plan.moves import Decision
from p2pswarm.progress.events import Departure, Event, Report
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.cost import NO_PRICE
from p2pswarm.run.messages.membership import Load, MemberFacts, PrepareStage
from p2pswarm.settings.codec_ladder import BoundaryCodecs
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import BalanceAsked, OrderedMove, OrderedPreparation
from p2pswarm.trainer.balance.codec_choice import BoundaryRates, CodecsChosen
from p2pswarm.trainer.balance.move_preparation import PreparedMove, StopPreparing
from p2pswarm.trainer.reports.cost import ServerPriced, StandbyPriced
from p2pswarm.trainer.reports.leadership import (
    Leads,
    StandbyTaken,
    SteppedDown,
    TrainerEnlisted,
    VotesAlone,
    VotesLacking,
)
from p2pswarm.trainer.reports.reports import (
    AveragingSlow,
    BeganWrong,
    CannotGoBack,
    ChainGrown,
    CheckpointProgress,
    DigestsTied,
    FactsKnown,
    LastLeaves,
    Loaded,
    MemberJoined,
    MemberLost,
    MemberReady,
    NewestCopy,
    NotFiniteThere,
    Quarantined,
    ReferencesKnown,
    Replayed,
    ResultsTied,
    RoadBroken,
    RunBegun,
    RunFinished,
    ServerFails,
    ServerTooSlow,
    StateFetched,
    StepDone,
    SumKept,
    SumVoided,
    VersionsRefused,
    WeightsSought,
    WentBack,
    WrongResult,
)
from p2pswarm.trainer.reports.step_seconds import StallCause, Stalling, StallOver, StepTimed

ANN, BOB = Incarnation(bytes([1]) * 32, 1), Incarnation(bytes([2]) * 32, 2)

SENTENCES = [
    MemberJoined(ANN, 1, "a:1"),
    MemberReady(ANN, 1),
    MemberLost(ANN, 1, "link lost", 3),
    MemberLost(ANN, 1, "it left", 0),
    MemberLost(
        ANN,
        1,
        "it moves to stage 2: +11 % for everybody, costs 40 s of its time",
        3,
        Departure.MOVED,
    ),
    Replayed(0, (1, 2), "it was late"),
    Replayed(0, (1,), "it was late"),
    VersionsRefused(1, (2,), 1),
    VersionsRefused(3, (2, 3), 1),
    SumKept(3, ANN, Incarnation(ANN.peer, 5), 1, 7),
    SumVoided(ANN, 1, "it did not come back in time", 7),
    WeightsSought(1, 7, ANN, "10.0.0.1:4000"),
    NewestCopy((1,), 7, 5, "checkpoints/x", 31.4, None),
    NewestCopy((0, 1), 7, 5, "checkpoints", None, 55.0),
    NewestCopy((1,), 7, None, "checkpoints", None, 55.0),
    NewestCopy((1,), 7, None, "", None, None),
    CannotGoBack("x is gone"),
    LastLeaves(1, 7, ANN, 20.0),
    LastLeaves(1, 7, ANN, 20.0, saved=True),
    DigestsTied(0, 3),
    BeganWrong(1),
    AveragingSlow(3, 120.0, 240.0),
    ServerFails(ANN, 1, 3, "no memory", 10.0),
    ServerFails(ANN, 1, 3, "no memory", None),
    ServerTooSlow(ANN, 1, 10.0),
    Quarantined(4, 70, "a gradient is not finite", held_out=False),
    Quarantined(4, 2**61, "it holds NaN", held_out=True),
    NotFiniteThere(4, 70, ((ANN, 1),), "the loss is nan"),
    NotFiniteThere(4, 70, ((ANN, 1), (BOB, 2)), "the loss is nan"),
    WrongResult(ANN, 1, 70, "it lied", 10.0),
    WrongResult(ANN, 1, 70, "it lied", None),
    ResultsTied(70, 1, (ANN, BOB)),
    VotesLacking(((ANN.peer, "10.0.0.7:4001"), (BOB.peer, ""))),
    RoadBroken(ANN, BOB, 1, 3, "it was late"),
    RoadBroken(None, BOB, 2, 3, "it was late"),
    RoadBroken(None, BOB, 0, 3, "it was late"),
    VotesAlone(),
    StateFetched(1),
    CheckpointProgress(7, 250_000, 1_000_000, 1, 2),
    CheckpointProgress(7, 0, 0, 0, 2),
    ReferencesKnown(20, 200, "state/references.bin"),
    ReferencesKnown(200, 200, "state/references.bin"),
    WentBack(1, 2),
    WentBack(2, 2),
    Leads(2, 7),
    SteppedDown("another one leads"),
    StandbyTaken(BOB.peer, "10.0.0.7:4001"),
    TrainerEnlisted(BOB.peer, "10.0.0.7:4001"),
    OrderedPreparation(ANN, 1, 2, 0.114, 3, PrepareStage(2, 5, b"", 1000)),
    StopPreparing(PreparedMove(ANN, 1, 2), "it would help nobody"),
    CodecsChosen(7, 0, BoundaryCodecs("int8", "dither4"), "its links are slow"),
]
FIGURES = [
    RunBegun(),
    StepDone(0, 3.25, 0.5, 1e-3, 8),
    ChainGrown(8, bytes(32)),
    FactsKnown(ANN, MemberFacts("attic", "cpu", 8, "", "0.1.0")),
    RunFinished("all steps are done", failed=False),
    Loaded(ANN, 1, Load(2, 0.0, 0.0, 3.5, 0)),
    BalanceAsked(Decision(why="nobody gains"), (), 2),
    OrderedMove(ANN, 1, 2, 0.114, 40.2, 3),
    BoundaryRates(()),
    StepTimed(0, 2.0, (), ()),
    Stalling(0, 9.0, 2.0, StallCause.VOTES, (), (), "the record lacks votes"),
    StallOver(0, 9.0),
    ServerPriced(ANN, NO_PRICE),
    StandbyPriced(bytes(32), None),
]
"""Reports that only become a part of an event, or of an answer."""


def kinds(base: type[Report]) -> set[str]:
    """The names of a class and of all that derive from it."""
    return {base.__name__}.union(*map(kinds, base.__subclasses__()))


def test_each_kind_of_report_has_a_sentence_or_is_a_figure():
    reports = kinds(Report) - kinds(Event) - {"Report"}

    assert {type(report).__name__ for report in (*SENTENCES, *FIGURES)} == reports
    assert all(report.text for report in SENTENCES)
    assert not any(report.text for report in FIGURES)


def test_the_sentences(golden_lines):
    golden_lines("report_texts.txt", [f"{type(each).__name__}: {each.text}" for each in SENTENCES])


@pytest.mark.parametrize("report", SENTENCES)
def test_a_node_reports_a_sentence_as_an_event(report: Report):
    told = Reporter(RunConfig(), 1000).on_report(report, 5.0)

    assert report.text in [event.text for event in told]
