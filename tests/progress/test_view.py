"""The view of a run: what it shows of any events, in bounded memory, live as in a replay."""

import heapq
import json
import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from p2pswarm.progress.curve_points import POINTS_MAX, ThinnedCurve
from p2pswarm.progress.event_lines import EventLine, EventNumbers, from_line
from p2pswarm.progress.events import (
    Begun,
    Checkpointed,
    CheckpointFailed,
    Departure,
    Ended,
    Event,
    HeldOut,
    Joined,
    LeadershipTaken,
    Left,
    MachineFacts,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Relocated,
    RolledBack,
    Serving,
    Started,
    Stepped,
    Waiting,
    Why,
)
from p2pswarm.progress.servers_view import LOST_KEPT_S, LOST_MAX, SERVERS_MAX, UNLISTED_S
from p2pswarm.progress.view import EVENTS_KEPT, HOURS_MAX, STALLS_MAX, RunView

BEGUN = Begun(
    *("a run", "trainer", "attic", "0.1.0", 100, 3, (2, 2, 1), 4, 2, 64, 1_000),
    *("gpt", "adamw", ("bf16", "bf16", "raw")),
)


def stepped(step: int, *, took_s: float = 0.0, replayed: int = 0, loss: float = 3.0) -> Stepped:
    counts = MicrobatchCounts(4 * step + 4, 4 * step, replayed)
    return Stepped(step, loss, 1000.0, 1e-3, 0.5, counts, took_s)


class Telling:
    """One process that tells a view its events, on a wall clock."""

    def __init__(self, view: RunView, *, by: str = "k7f2", at: float = 1_000.0) -> None:
        self.view = view
        self.at = at
        self._numbers = EventNumbers("5f0c", by, lambda: self.at)

    def tell(self, *events: Event) -> None:
        for event in events:
            self.view.on_event(self._numbers.stamp(event))

    def steps(self, first: int, last: int, every_s: float = 2.0) -> None:
        for step in range(first, last + 1):
            self.at += every_s
            self.tell(stepped(step))

    def shown(self, after_s: float = 0.0) -> dict:
        return self.view.to_json(self.at + after_s)


def begun(*events: Event) -> Telling:
    telling = Telling(RunView())
    telling.tell(BEGUN, *events)
    return telling


def test_every_stage_of_the_run_is_a_row_also_when_nobody_serves_it():
    telling = begun(Joined("ann", 1), Serving("ann", 1))
    telling.at += 5.0
    telling.tell(Left("ann", 1, Departure.LOST, "no answer", 2))

    rows = telling.shown(30.0)["stages"]

    assert [(row["stage"], row["ready"], row["since"], row["blocks"]) for row in rows] == [
        (0, 0, 1_000.0, 2),
        (1, 0, 1_005.0, 2),
        (2, 0, 1_000.0, 1),
    ]


def test_a_server_is_shown_from_joining_to_ten_minutes_after_its_loss():
    telling = begun(MachineFacts("ann", "attic", "A100", 8, "Berlin", "0.1.0"), Joined("ann", 1))
    states = [telling.shown()["servers"]["ann"]["state"]]
    telling.tell(Serving("ann", 1))
    states.append(telling.shown()["servers"]["ann"]["state"])
    telling.at += 60.0
    telling.tell(Left("ann", 1, Departure.SILENT, "it is silent", 2))

    row = telling.shown()["servers"]["ann"]
    assert [*states, row["state"]] == ["joining", "ready", "lost"]
    assert (row["name"], row["device"], row["region"]) == ("attic", "A100", "Berlin")
    assert (row["why"], row["reason"], row["since"]) == ("silent", "it is silent", 1_060.0)
    assert "ann" in telling.shown(LOST_KEPT_S)["servers"]
    assert "ann" not in telling.shown(LOST_KEPT_S + 1.0)["servers"]


def test_a_server_that_moves_is_not_lost():
    telling = begun(Serving("ann", 0), Serving("bob", 0))
    telling.tell(
        Relocated("ann", 0, 1, 0.1, 2.0, 1),
        Left("ann", 0, Departure.MOVED, "it moves to stage 1: +10 %", 0),
    )
    on_its_way = telling.shown()["servers"]["ann"]["state"]
    telling.tell(Joined("ann", 1), Serving("ann", 1))

    shown = telling.shown()
    assert on_its_way == "moving"
    assert (shown["servers"]["ann"]["stage"], shown["servers"]["ann"]["state"]) == (1, "ready")
    assert shown["totals"]["left"] == {
        "moved": 1,
        "asked": 0,
        "silent": 0,
        "lost": 0,
        "wrong": 0,
    }
    assert shown["totals"]["moved"] == 1


def test_figures_of_servers_are_shown_and_a_rate_that_is_old_is_none():
    line = PeerLine("ann", 0, True, 3, 2.5, direct=2, relayed=1, forward_s=0.25, queue_s=0.5)
    telling = begun(Serving("ann", 0), Peers((line,)))

    fresh, old = telling.shown(1.0), telling.shown(60.0)

    assert fresh["servers"]["ann"]["rate_per_s"] == 2.5
    assert fresh["stages"][0]["rate_per_s"] == 2.5
    assert fresh["stages"][0]["queue_s"] == 0.5
    assert fresh["links"] == {"direct": 2, "mapped": 0, "punched": 0, "relayed": 1}
    assert old["servers"]["ann"]["rate_per_s"] == 0.0
    assert old["servers"]["ann"]["figures_age_s"] == 60.0


def test_a_server_that_its_trainer_knows_no_more_is_lost():
    telling = begun(Serving("ann", 0), Peers((PeerLine("ann", 0, True, 0, 1.0),)), Peers(()))
    telling.at += UNLISTED_S + 1.0
    telling.tell(Peers(()))

    row = telling.shown()["servers"]["ann"]
    assert (row["state"], row["since"]) == ("lost", 1_000.0)


def test_logs_of_servers_beside_their_trainers_make_nobody_lost():
    """A server tells of itself alone; its trainer lists all, each 10.5 s here."""
    view = RunView()
    trainer, *servers = (Telling(view, by=by) for by in ("k7f2", "ann", "bob"))
    lines = [PeerLine(name, 0, True, 0, 1.0, price_per_hour=0.5) for name in ("ann", "bob", "cid")]
    trainer.tell(BEGUN, *(Serving(line.peer, 0) for line in lines))
    for tick in range(1, 1_200):
        for each in (trainer, *servers):
            each.at += 0.5
        if tick % 21 == 0:
            trainer.tell(Peers(tuple(lines)))
        for server, line in zip(servers, lines, strict=False):
            if tick % 20 == 3:
                server.tell(Peers((replace(line, price_per_hour=None, queued=7),)))
        rows = trainer.shown()["servers"]
        assert [row["state"] for row in rows.values()] == ["ready"] * 3
    assert [row["price_per_hour"] for row in rows.values()] == [0.5] * 3

    trainer.tell(Left("ann", 0, Departure.LOST, "no answer", 0))
    servers[0].tell(Peers((lines[0],)))

    assert trainer.shown()["servers"]["ann"]["state"] == "lost"


def test_under_another_trainer_all_servers_join_anew():
    telling = begun(Serving("ann", 0))
    other = Telling(telling.view, by="zoe", at=1_010.0)

    other.tell(BEGUN, LeadershipTaken(2, 7), Peers(()), Joined("ann", 0))
    joining = other.shown()["servers"]["ann"]["state"]
    other.tell(Serving("ann", 0))

    assert joining == "joining"
    assert other.shown()["servers"]["ann"]["state"] == "ready"
    assert set(other.shown()["nodes"]) == {"k7f2", "zoe"}


def test_a_rate_older_than_three_steps_is_none_and_the_run_stands_still():
    telling = begun(Started(1_000))
    telling.steps(1, 8)

    soon, late = telling.shown(5.9), telling.shown(6.1)

    assert (soon["tokens_per_s"], soon["state"]) == (1000.0, "training")
    assert (late["tokens_per_s"], late["state"]) == (0.0, "stalled")
    assert late["committed_ago_s"] == pytest.approx(6.1)
    assert [(one["step"], one["until"]) for one in late["stalls"]] == [(8, None)]


def test_a_stall_that_is_over_stays_in_the_list():
    telling = begun(Started(1_000))
    telling.steps(1, 8)
    telling.tell(Waiting((2,)))
    waits = telling.shown(20.0)
    telling.steps(9, 9, every_s=30.0)

    (stall,) = telling.shown()["stalls"]
    assert (waits["state"], waits["stalls"][0]["waiting"]) == ("waiting", [2])
    assert (stall["step"], stall["since"], stall["seconds"]) == (8, 1_016.0, 30.0)
    assert telling.shown()["totals"]["stalls"] == 1


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "starting"),
        ([Waiting((0,))], "waiting"),
        ([Waiting((0,)), Started(1)], "training"),
        (
            [Started(1), stepped(1), Ended(1, "done", False, 1.0, MicrobatchCounts(4, 4, 0))],
            "ended",
        ),
        ([Started(1), Ended(0, "bare", True, 0.0, MicrobatchCounts(0, 0, 0))], "failed"),
    ],
)
def test_the_state_of_a_run_is_a_word(events, state):
    assert begun(*events).shown(1e6)["state"] == state


def test_microbatches_that_were_sent_again_add_up_over_trainers():
    telling = begun(Started(1))
    for step, replayed in [(1, 2), (2, 5)]:
        telling.at += 1.0
        telling.tell(stepped(step, replayed=replayed))
    other = Telling(telling.view, by="zoe", at=telling.at)
    for step, replayed in [(3, 1), (4, 4)]:
        other.at += 1.0
        other.tell(stepped(step, replayed=replayed))

    assert other.shown()["totals"]["again"] == 5 + 4


def test_after_a_run_has_gone_back_its_curves_go_on_from_there():
    telling = begun(Started(1))
    telling.steps(1, 6)
    telling.tell(RolledBack(3, 6))
    telling.steps(4, 4)

    assert [step for step, *_ in telling.shown()["curves"]["loss"]] == [1, 2, 3, 4]


def test_a_step_that_a_new_trainer_tells_again_counts_once():
    telling = begun(Started(1))
    telling.steps(1, 3)
    telling.tell(stepped(3))

    assert telling.shown()["hours"][0]["steps"] == 3
    assert telling.shown()["usual_step_s"] == 2.0


def test_checkpoints_reasons_and_losses_are_shown():
    telling = begun(
        HeldOut(0, 5.0),
        Checkpointed(4, "/there", 0.5),
        CheckpointFailed(6, "the disk is full"),
        Why("all queues are as long", (4.0, 2.0, 3.0), 1),
    )

    shown = telling.shown()
    assert shown["held_out"] == 5.0
    assert (shown["checkpoint"]["step"], shown["checkpoint"]["at"]) == (4, 1_000.0)
    assert shown["checkpoint"]["failure"] == "no checkpoint of step 6: the disk is full"
    assert (shown["why"], shown["slowest"]) == ("all queues are as long", 1)
    assert [row["slowest"] for row in shown["stages"]] == [False, True, False]


def test_a_loss_that_is_no_number_is_shown_as_none():
    telling = begun(Started(1), stepped(1, loss=math.nan))

    assert telling.shown()["loss"] is None
    assert telling.shown()["curves"]["loss"] == []


def test_what_a_peer_said_is_printable_and_short():
    hostile = "\x1b[2J\u202eevil\u2066" + 10_000 * "x"
    telling = begun(MachineFacts("ann", hostile, hostile), Joined("ann", 0), Note(hostile))

    shown = telling.shown()
    assert shown["servers"]["ann"]["name"].startswith("?[2J?evil?")
    assert len(json.dumps(shown)) < 10_000


def test_a_curve_of_any_length_has_few_points_and_ends_with_the_newest():
    curve = ThinnedCurve()
    for step in range(1, 100_001):
        curve.add(step, float(step), 1.0 if step <= 50_000 else 3.0)

    points = curve.points
    assert len(points) <= POINTS_MAX
    assert points[-1].step == 100_000
    assert sum(point.count * point.value for point in points) == pytest.approx(200_000.0)


def test_a_day_of_events_from_twenty_servers_stays_small():
    """A step a second and figures each ten: what a log of a day has."""
    telling = begun(*(Serving(f"server{n:02}", n % 3) for n in range(20)), Started(1))
    lines = tuple(PeerLine(f"server{n:02}", n % 3, True, 1, 2.0) for n in range(20))
    for step in range(1, 8_641):
        telling.at += 10.0
        telling.tell(stepped(step), Peers(lines), Note(f"note {step}"))

    size = len(json.dumps(telling.shown(), allow_nan=False))

    assert size < 200_000
    assert len(telling.view.events()) == EVENTS_KEPT


def test_a_member_that_comes_and_goes_without_end_fills_nothing():
    telling = begun()
    for n in range(20_000):
        name = f"server{n}"
        telling.at += 0.01
        telling.tell(Joined(name, n % 3), Left(name, n % 3, Departure.LOST, "gone", 0))

    shown = telling.shown()
    assert len(shown["servers"]) <= LOST_MAX
    assert shown["totals"]["joined"] == 20_000


def test_servers_without_end_that_never_leave_fill_nothing_either():
    telling = begun()
    for n in range(SERVERS_MAX + 2 * LOST_MAX):
        telling.tell(Joined(f"server{n}", 0))

    assert len(telling.shown()["servers"]) == SERVERS_MAX + LOST_MAX


SERVERS = st.sampled_from([f"server{n}" for n in range(6)])
STAGES = st.integers(-1, 4)
COUNTS = st.builds(MicrobatchCounts, *[st.integers(0, 9)] * 5)
FIGURES = st.none() | st.floats()


LINES = st.builds(
    *(PeerLine, SERVERS, STAGES, st.booleans(), st.integers(0, 9), st.floats()), queue_s=FIGURES
)
OTHERS = [
    Started(1),
    HeldOut(1, math.nan),
    Waiting((1,)),
    Waiting(()),
    Checkpointed(1, "/there", 0.5),
    LeadershipTaken(2, 3),
    RolledBack(1, 3),
    Relocated("server1", 0, 1, math.inf, 1.0, 1),
    MachineFacts("server1", "attic"),
    Why("because", (math.nan,), 9),
    Ended(3, "done", False, 1.0, MicrobatchCounts(4, 4, 0)),
]
ANY_EVENT = st.one_of(
    st.sampled_from(OTHERS),
    st.builds(Joined, SERVERS, STAGES),
    st.builds(Serving, SERVERS, STAGES),
    st.builds(Left, SERVERS, STAGES, st.sampled_from(Departure), st.just("gone"), st.just(1)),
    st.builds(Peers, st.lists(LINES, max_size=6).map(tuple)),
    st.builds(
        Stepped,
        st.integers(0, 9),
        *(st.floats(), st.floats(), st.floats(), st.floats()),
        COUNTS,
        st.floats(),
    ),
    st.sampled_from([BEGUN, Begun("", "stage", "attic", "0.1.0"), Begun("r", "r", "a", "", 1, 5)]),
)
MOMENTS = st.lists(st.tuples(st.floats(-5.0, 400.0), ANY_EVENT), max_size=25)


def process(by: str, moments: list[tuple[float, Event]]) -> list[EventLine]:
    """The lines of one process, in order; its clock mostly goes on."""
    lines, at = [], 1_000.0
    for n, (after_s, event) in enumerate(moments, 1):
        at += after_s
        lines.append(EventLine(round(max(0.0, at), 3), "5f0c", by, n, event))
    return lines


@given(MOMENTS, MOMENTS, st.floats(-10.0, 1_000.0))
def test_any_events_of_several_nodes_give_a_view_that_agrees_with_itself(ann, bob, after_s):
    view = RunView()
    for told in heapq.merge(process("ann", ann), process("bob", bob), key=lambda one: one.at):
        view.on_event(told)

    shown = view.to_json((view.newest_at or 0.0) + after_s)

    json.dumps(shown, allow_nan=False)
    servers = shown["servers"].values()
    for row in shown["stages"]:
        here = [one["state"] for one in servers if one["stage"] == row["stage"]]
        assert (row["ready"], row["joining"]) == (here.count("ready"), here.count("joining"))
        assert (row["since"] is None) == bool(row["ready"])
        assert len(row["servers"]) == row["ready"] + row["joining"]
    assert len(shown["hours"]) <= HOURS_MAX
    assert len(shown["stalls"]) <= STALLS_MAX + 1
    assert shown["tokens_per_s"] == 0.0 or shown["state"] in ("training", "waiting")


@given(MOMENTS)
def test_a_replay_shows_what_was_shown_live(moments):
    live, replay = RunView(), RunView()
    for one in process("ann", moments):
        live.on_event(one)
        replay.on_event(from_line(one.line))

    assert live.to_json(2_000.0) == replay.to_json(2_000.0)


@pytest.mark.parametrize("step_s", [0.05, 2.0])
def test_short_steps_that_vary_are_no_stall(step_s):
    telling = begun(Started(1))
    telling.steps(1, 20, every_s=step_s)

    assert telling.shown(0.9)["state"] == "training"
