"""What wakes a run's owner: what has lasted, each kind seldom, the end always."""

import pytest

from p2pswarm.progress.alerts import (
    AGAIN_S,
    LOST_STAGE_S,
    STALL_LEAST_S,
    TEXT_CHARS,
    AlertKind,
    Alerts,
)
from p2pswarm.progress.cost_events import BudgetReached
from p2pswarm.progress.events import (
    CheckpointFailed,
    Ended,
    MicrobatchCounts,
    RolledBack,
    Stalled,
    Started,
    Stepped,
    Waiting,
)

COUNTS = MicrobatchCounts(8, 8, 0)


def stepped(step: int) -> Stepped:
    return Stepped(step, 2.0, 1_000.0, 1e-3, 1.0, COUNTS)


def running(step_s: float = 20.0, steps: int = 5) -> Alerts:
    """A run that has done some steps from time 0 on."""
    alerts = Alerts()
    alerts.on_event(Started(1_000), 0.0)
    for step in range(1, steps + 1):
        alerts.on_event(stepped(step), step * step_s)
    assert alerts.drain() == []
    return alerts


def due(alerts: Alerts) -> float:
    """When it wants to be woken; it is."""
    due_s = alerts.next_deadline_s()
    assert due_s is not None
    alerts.on_deadline(due_s)
    return due_s


def test_a_step_of_three_times_the_usual_is_a_stall_and_is_told_once():
    alerts = running(step_s=20.0)

    assert due(alerts) == 100.0 + 60.0

    (alert,) = alerts.drain()
    assert (alert.kind, alert.step) == (AlertKind.STALL, 5)
    assert alert.text == "step 6 takes 60 s, usually 20.0 s"
    assert alerts.next_deadline_s() is None


def test_short_steps_wake_nobody_for_a_moment():
    alerts = running(step_s=0.1)

    assert alerts.next_deadline_s() == pytest.approx(0.5 + STALL_LEAST_S)


def stalled(step: int, usual_s: float | None) -> Stalled:
    why = "the trainer waits for server-1 of stage 1"
    return Stalled(step, 60.0, usual_s, "silent", ("server-1",), (1,), why)


def test_a_stall_whose_cause_is_known_names_it():
    alerts = running(step_s=20.0)
    alerts.on_event(stalled(6, 20.0), 155.0)

    due(alerts)

    (alert,) = alerts.drain()
    assert alert.text.endswith("usually 20.0 s: the trainer waits for server-1 of stage 1")


def test_the_cause_of_one_stall_is_not_told_of_the_next():
    alerts = running(step_s=20.0)
    alerts.on_event(stalled(6, 20.0), 155.0)
    alerts.on_event(stepped(6), 158.0)

    due(alerts)

    (alert,) = alerts.drain()
    assert "server-1" not in alert.text


def test_a_first_step_that_stalls_wakes_its_owner_too():
    alerts = Alerts()
    alerts.on_event(Started(1_000), 0.0)
    alerts.on_event(stalled(1, None), 40.0)

    assert due(alerts) == STALL_LEAST_S

    (alert,) = alerts.drain()
    assert alert.kind is AlertKind.STALL


def test_a_stage_that_nobody_serves_is_told_once_it_has_lasted():
    alerts = running(step_s=100.0)
    alerts.on_event(Waiting((1,)), 510.0)

    assert due(alerts) == 510.0 + LOST_STAGE_S

    (alert,) = alerts.drain()
    assert alert.kind is AlertKind.LOST_STAGE
    assert alert.text == "waiting for a server of stage 1 since 30 s"


def test_a_stage_that_is_served_again_in_time_wakes_nobody():
    alerts = running(step_s=100.0)

    alerts.on_event(Waiting((1,)), 510.0)
    alerts.on_event(Waiting(()), 515.0)

    assert alerts.next_deadline_s() == 500.0 + 300.0


def test_servers_that_have_not_come_yet_are_no_lost_stage():
    alerts = Alerts()

    alerts.on_event(Waiting((0, 1)), 1.0)

    assert alerts.next_deadline_s() is None


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (BudgetReached(120.0, 150.0, "USD", 2.0, over=False), AlertKind.BUDGET_NEAR),
        (BudgetReached(150.0, 150.0, "USD", 2.0, over=True), AlertKind.BUDGET_SPENT),
        (CheckpointFailed(7, "the disk is full"), AlertKind.NOT_SAVED),
        (Ended(9, "all steps are done", False, 1.0, COUNTS), AlertKind.END),
    ],
)
def test_what_is_told_at_once(event, kind):
    alerts = running()

    alerts.on_event(event, 200.0)

    assert [alert.kind for alert in alerts.drain()] == [kind]


def test_alerts_of_a_kind_are_folded_for_a_while():
    alerts = running()
    failed = CheckpointFailed(7, "the disk is full")

    for at in (200.0, 210.0, 220.0, 200.0 + AGAIN_S):
        alerts.on_event(failed, at)

    first, second = alerts.drain()
    assert first.text == failed.text
    assert second.text == f"{failed.text} (and 2 more of this kind before)"


def test_after_its_end_a_run_does_not_stall():
    alerts = running()

    alerts.on_event(Ended(5, "the trainer leaves", True, 1.0, COUNTS), 110.0)

    assert alerts.next_deadline_s() is None


def test_after_a_return_to_a_checkpoint_steps_are_counted_from_there():
    alerts = running(step_s=20.0)

    alerts.on_event(RolledBack(2, 5), 110.0)
    alerts.on_event(stepped(3), 130.0)
    due(alerts)

    assert alerts.drain()[0].step == 3


def test_text_of_peers_is_short_and_printable():
    alerts = running()

    alerts.on_event(CheckpointFailed(7, "\x1b[2J" + "x" * 10_000), 200.0)

    (alert,) = alerts.drain()
    assert alert.text.isprintable()
    assert len(alert.text) == TEXT_CHARS
