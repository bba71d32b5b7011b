"""A run that is watched from afar: answers become events."""

from p2pswarm.commands.watch.distant_run import ASK_EVERY_S, DistantRun
from p2pswarm.progress.cost_events import CostSoFar
from p2pswarm.progress.events import (
    Checkpointed,
    Ended,
    HeldOut,
    Left,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.run.messages.balance import ServerCapacity
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.membership import NOT_MEASURED
from p2pswarm.run.messages.status import RunStatus, StageStatus


def status(**fields):
    given = {
        "done": 3,
        "loss": 2.5,
        "held_out": 2.6,
        "tokens_per_s": 100.0,
        "committed_ago_s": 0.5,
        "asked": 32,
        "counted": 24,
        "replayed": 1,
        "waiting": (),
        "stages": (StageStatus(1, 0),) * 2,
        "ended": "",
    }
    return RunStatus(**given | fields)


def server(number, stage=0):
    return ServerCapacity(bytes([number] * 32), stage, True, 0.01, NOT_MEASURED)


def kinds(events):
    return [type(event) for event in events]


def test_the_first_answer_tells_how_the_run_stands():
    events = DistantRun().on_answer(status(saved=2, saved_ago_s=1.0), [server(1), server(2, 1)])

    assert kinds(events) == [Started, Peers, Stepped, HeldOut, Checkpointed]
    assert events[0].text == "training goes on"
    assert len(events[1].peers) == 2
    assert (events[2].step, events[2].counts.counted) == (3, 24)


def test_what_the_run_has_cost_is_told_where_its_trainer_says_so():
    run, spent = DistantRun(), Spent("EUR", invited=2.5, tokens=1e6, per_hour=1.0)

    (cost,) = (one for one in run.on_answer(status(spent=spent), []) if isinstance(one, CostSoFar))
    assert (cost.currency, cost.total, cost.budget) == ("EUR", 2.5, 0.0)
    assert CostSoFar not in kinds(run.on_answer(status(spent=spent), []))


def test_what_is_as_it_was_is_not_told_again():
    run = DistantRun()
    run.on_answer(status(), [server(1)])

    assert kinds(run.on_answer(status(committed_ago_s=2.5), [server(1)])) == [Peers]


def test_a_step_between_two_answers_has_its_time():
    run = DistantRun()
    run.on_answer(status(committed_ago_s=0.5), [])

    stepped = run.on_answer(status(done=5, committed_ago_s=0.5), [])[-1]

    assert (stepped.step, stepped.took_s) == (5, 1.0)
    assert stepped.seconds == ASK_EVERY_S


def test_a_server_that_is_not_listed_any_more_has_left():
    run = DistantRun()
    run.on_answer(status(), [server(1), server(2, 1)])

    left, rest = run.on_answer(status(), [server(1)])

    assert isinstance(left, Left)
    assert left.stage == 1
    assert len(rest.peers) == 1


def test_servers_are_there_before_they_have_measured_anything():
    run = DistantRun()
    events = run.on_answer(
        status(
            done=0,
            loss=None,
            held_out=None,
            stages=(StageStatus(1, 1), StageStatus(0, 0)),
            waiting=(1,),
        ),
        [],
    )

    assert kinds(events) == [Waiting, Peers]
    assert [line.ready for line in events[1].peers] == [True, False]
    assert kinds(run.on_answer(status(), [server(1)])) == [Waiting, Peers, Stepped, HeldOut]


def test_the_end_is_told_once():
    run = DistantRun()
    run.on_answer(status(), [])

    assert kinds(run.on_answer(status(ended="all steps are done"), [])) == [Peers, Ended]
    assert kinds(run.on_answer(status(ended="all steps are done"), [])) == [Peers]
