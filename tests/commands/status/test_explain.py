"""`p2pswarm explain`: the last decisions, and why the rest did not move."""

import json
from dataclasses import replace

import pytest

from p2pswarm.base.errors import NotServing
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.commands.status.texts import NOT_ASKED, balance_lines, balances_as_json
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.progress.answers import LatestBalance
from p2pswarm.node.progress.reporter import Reporter
from p2pswarm.plan.move_times import MoveTimes
from p2pswarm.plan.moves import Decision
from p2pswarm.progress.events import Relocated
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.balance import MOVES_TOLD_MAX, AskBalance
from p2pswarm.run.messages.membership import PrepareStage
from p2pswarm.settings.codec_ladder import MILDEST, BoundaryCodecs
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import (
    BalanceAsked,
    OrderedMove,
    OrderedPreparation,
    StageState,
)
from p2pswarm.trainer.balance.codec_choice import BoundaryRates, BoundaryState, CodecsChosen
from p2pswarm.trainer.balance.move_preparation import PreparedMove, StopPreparing

RUN = b"r" * 16
MOVER = Incarnation(b"m" * 32, 7)
SHORT = PeerId(MOVER.peer).short
LIMIT = "the run is as fast as this stage"
WORTH = "+11 % for everybody with 2 more, costs 40 s of its time"
TOLD = f"{SHORT} moves from stage 1 to 2: {WORTH}"
MOVE = OrderedMove(MOVER, 1, 2, 0.114, 40.2, 3)
STAGES = (StageState(4.0, 0.25, 3, 0), StageState(2.5, None, 1, 1))
ASKED = BalanceAsked(
    Decision(why="+0.8 % is to be had, and less than +2.0 % moves nobody", stay=(("rests", 1),)),
    STAGES,
    2,
    times=MoveTimes(prepared_s=0.02, waits_s=12.5, prepared=3),
)
TAKES = (
    "a move takes 0.02 s if it fetches first and waits 12.5 s for a step (by 3 moves),"
    " 5 s beside its download if it leaves first (not measured yet)"
)


class Offer:
    """What the text needs of an offer."""

    run = RUN
    config = RunConfig(name="my run", stages=2)
    trainer = Contact(PeerId(b"t" * 32), Address("h", 1))


def answered(*reports, now_s: float = 100.0):
    latest = LatestBalance(RUN, "priced")
    for at_s, report in reports:
        latest.on_report(report, at_s)
    status = latest.answer(AskBalance(RUN), now_s)
    assert decode(encode(status)) == status
    return status


def test_a_decision_reads_as_what_it_brings_and_what_it_costs():
    (event,) = Reporter(RunConfig(), 1000).on_report(MOVE, 12.0)

    assert event == Relocated(SHORT, 1, 2, 0.114, 40.2, 3)
    assert event.text == TOLD
    assert MOVE.reason.startswith("it moves to stage 2: +11 % for everybody")


def test_why_nobody_moves_is_an_event():
    (why,) = Reporter(RunConfig(), 1000).on_report(ASKED, 1.0)

    assert why.text == ASKED.decision.why
    assert why.slowest == 1


def test_the_lines_name_the_slowest_stage_the_moves_and_why_others_stay():
    lines = balance_lines(Offer, answered((35.0, MOVE), (95.0, ASKED)))

    assert lines == [
        "run 'my run', rebalancing 'priced'",
        "  stage 0: 3 servers, 4.00 microbatches/s, a microbatch waits 0.25 s",
        f"  stage 1: 1 server, 2.50 microbatches/s, 1 not measured yet, {LIMIT}",
        "  each stage keeps 2 ready",
        f"  {TAKES}",
        f"  1 min ago: {TOLD}",
        "  now: +0.8 % is to be had, and less than +2.0 % moves nobody",
        "  1 cannot be moved: it rests",
    ]


def test_before_the_first_question_and_without_an_answer_it_says_so():
    assert balance_lines(Offer, answered())[1:] == [f"  {NOT_ASKED}"]
    assert "does not answer" in balance_lines(Offer, None)[1]
    assert "  no server has moved yet" in balance_lines(Offer, answered((0.0, ASKED)))


def test_scripts_get_one_object():
    (one,) = json.loads(balances_as_json([(Offer, answered((1.0, MOVE), (2.0, ASKED)))]))["runs"]

    assert one["rule"] == "priced"
    assert one["balance"]["moves"][0]["peer"] == str(PeerId(MOVER.peer))
    assert one["balance"]["stages"][1]["queue_s"] is None
    assert json.loads(balances_as_json([(Offer, None)]))["runs"][0]["balance"] is None


def test_only_the_last_moves_are_kept_and_the_newest_comes_first():
    status = answered(*((float(n), MOVE) for n in range(100)))

    assert len(status.moves) == MOVES_TOLD_MAX
    assert [move.ago_s for move in status.moves[:2]] == [1.0, 2.0]


LADDER_1 = BoundaryCodecs("int8", "dither4")
SLOW = BoundaryState(0, LADDER_1, 5e6, 6e6, 0.04, 0.0125, 0.05)
UNKNOWN = BoundaryState(1, MILDEST, None, None, 0.0, 0.0, 0.05)


def test_each_boundary_has_its_codecs_what_its_links_carry_and_why():
    status = answered((90.0, BoundaryRates((SLOW, UNKNOWN))), (95.0, ASKED))

    lines = [line for line in balance_lines(Offer, status) if "stages" in line]

    up, down = "int8 up at 40 Mbit/s, 40.0 ms", "dither4 down at 48 Mbit/s, 12.5 ms"
    ways = f"{up} a microbatch, {down} a microbatch"
    assert lines == [
        f"  stages 0 and 1: {ways}: the mildest with which its links carry what is computed",
        "  stages 1 and 2: bf16 up, bf16 down: its links or a stage are not measured yet",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"codecs": MILDEST}, "its links carry more than the slowest stage computes"),
        ({"compute_s": 0.03}, "its links are slower than every stage"),
        ({"compute_s": None}, "its links or a stage are not measured yet"),
    ],
)
def test_the_reason_for_codecs_follows_from_what_was_measured(changes, why):
    assert replace(SLOW, **changes).why.startswith(why)


def test_numbers_that_no_message_has_are_cut():
    wild = replace(SLOW, up_bytes_per_s=1e18, down_s=1e12)

    (boundary,) = answered((90.0, BoundaryRates((wild,)))).boundaries

    assert (boundary.up_bytes_per_s, boundary.down_s) == (1e15, 1e9)


def test_other_codecs_are_a_line_for_people_and_what_was_measured_is_none():
    chosen = CodecsChosen(7, 0, LADDER_1, SLOW.why)

    (note,) = Reporter(RunConfig(), 1000).on_report(chosen, 1.0)

    assert note.text.startswith("from step 8 on stages 0 and 1 exchange int8 up and dither4 down")
    assert Reporter(RunConfig(), 1000).on_report(BoundaryRates((SLOW,)), 1.0) == []


PREPARED = PreparedMove(MOVER, 1, 2)
PREPARING = OrderedPreparation(MOVER, 1, 2, 0.114, 3, PrepareStage(2, 5, b"", 1000))
FETCHES = "it has fetched the weights for 40 s, and serves on"


def test_who_fetches_its_new_stage_s_weights_is_told_until_that_is_over():
    ordered = [(59.0, ASKED), (60.0, PREPARING)]
    status = answered(*ordered)
    line = f"  {SHORT} is to move from stage 1 to 2: +11 % for everybody; {FETCHES}"
    assert line in balance_lines(Offer, status)
    (run,) = json.loads(balances_as_json([(Offer, status)]))["runs"]
    assert run["balance"]["preparing"][0]["peer"] == str(PeerId(MOVER.peer))

    still = (90.0, replace(ASKED, preparing=(PREPARED,)))
    assert len(answered(*ordered, still).preparing) == 1
    for over in (MOVE, StopPreparing(PREPARED, "it would help nobody"), ASKED):
        assert answered(*ordered, still, (95.0, over)).preparing == ()


def test_another_run_is_not_explained():
    with pytest.raises(NotServing):
        LatestBalance(RUN, "priced").answer(AskBalance(b"o" * 16), 0.0)
