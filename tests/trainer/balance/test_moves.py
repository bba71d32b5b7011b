"""A stage without servers gets one of another stage, where any server can make its weights."""

import dataclasses

import pytest
from trainer.harness import Play

from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.balance.moves import AGAIN_S, MOVE_S
from p2pswarm.trainer.coordinator.decision import Start
from p2pswarm.trainer.reports import actions as act

TWO_STAGES = RunConfig(
    stages=2, steps=9, on_stage_lost="wait", batch=BatchConfig(microbatches=2, evaluate_every=0)
)
BACK_AT_5 = Start(version=5, gathers=False, loads=True, states={0: b"w0", 1: b"w0"})


def lost_at_the_beginning() -> Play:
    """Servers a, c, e of stage 0 and b, d of stage 1; those of stage 1 are gone."""
    play = Play(TWO_STAGES)
    members = {name: play.serve(name) for name in "abcde"}
    play.lose(members["b"], members["d"])
    play.seen(object)
    return play


def pause(play: Play, seconds: float) -> None:
    """Time passes, in which every member is heard and answers fences."""
    end_s = play.now_s + seconds
    while play.now_s < end_s:
        play.wait(min(1.0, end_s - play.now_s))
        for member in play.coordinator.members.ready() + play.coordinator.members.waiting():
            play.coordinator.silence.heard(member.incarnation, play.now_s)
            play.promise(member.incarnation)


def moved(play: Play) -> list[str]:
    evicted = [a for a in play.seen(act.Evict) if "it moves to stage 1" in a.reason]
    return [a.incarnation.peer[:1].decode() for a in evicted]


def back(play: Play, name: str, version: int = 0) -> int:
    """A server joins again with the weights of stage 0; which stage it is given."""
    play.join(name, stage=0, version=version, digest=b"w0")
    (assigned,) = (a.message for a in play.seen(act.Assign))
    assert assigned.keep == (assigned.stage == 0)
    return assigned.stage


def test_the_newest_of_the_best_served_stage_moves_when_nobody_else_came():
    play = lost_at_the_beginning()
    assert play.coordinator.next_deadline_s() <= MOVE_S
    pause(play, MOVE_S - 0.1)
    assert moved(play) == []

    pause(play, 0.1)

    assert moved(play) == ["e"]
    assert back(play, "e") == 1
    member = play.coordinator.members.of_peer(b"e" * 32)
    play.ready(member.incarnation)
    play.seen(object)
    assert play.coordinator.members.unserved_stages(1) == []
    pause(play, 10 * AGAIN_S)
    assert moved(play) == []


def test_a_newcomer_that_comes_first_takes_the_stage_and_nobody_moves():
    play = lost_at_the_beginning()
    pause(play, MOVE_S - 0.1)

    play.serve("x")
    pause(play, MOVE_S)

    assert moved(play) == []
    assert play.coordinator.members.unserved_stages(1) == []


def test_one_that_comes_back_when_another_has_taken_the_stage_keeps_its_own():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    play.join("x")
    play.seen(act.Assign)

    assert back(play, "e") == 0


def test_the_last_server_of_a_stage_stays():
    play = Play(TWO_STAGES)
    play.serve("a")
    play.lose(play.serve("b"))
    play.seen(object)

    pause(play, 10 * MOVE_S)

    assert moved(play) == []


def test_one_that_was_told_its_stage_or_leaves_stays():
    play = Play(TWO_STAGES)
    for name in "ac":
        join = dataclasses.replace(play.join_message(0), pinned=True)
        play.coordinator.joined(name.encode() * 32, join, play.now_s)
        play.ready(play.coordinator.members.of_peer(name.encode() * 32).incarnation)
    gone = play.serve("b")
    play.lose(gone)
    play.seen(object)

    pause(play, 10 * MOVE_S)

    assert moved(play) == []


def test_weights_of_later_steps_come_back_only_with_who_has_them():
    play = Play(TWO_STAGES)
    members = {name: play.serve(name) for name in "abc"}
    for number in (0, 1):
        play.count(members["a"], number)
        play.count(members["b"], number)
    play.reduce(*members.values())
    for member in members.values():
        play.commit(member, b"w1")
    play.lose(members["b"])
    play.seen(object)

    pause(play, 100 * MOVE_S)

    assert moved(play) == []


@pytest.mark.parametrize("loads", [True, False])
def test_where_the_run_has_gone_back_to_a_spare_server_loads_the_lost_stage(loads):
    start = dataclasses.replace(BACK_AT_5, loads=loads)
    play = Play(TWO_STAGES, start=start)
    for name in "ac":
        play.join(name, stage=0, version=5, digest=b"w0")
    play.seen(object)

    pause(play, MOVE_S)

    assert moved(play) == (["c"] if loads else [])
    if loads:
        play.join("c", stage=0, version=5, digest=b"w0")
        (assigned,) = (a.message for a in play.seen(act.Assign))
        assert (assigned.stage, assigned.keep, assigned.loads) == (1, False, True)


def test_another_follows_when_the_one_that_moved_cannot_load_the_weights():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    assert back(play, "e") == 1
    pause(play, 2 * AGAIN_S - 1.0)
    assert moved(play) == []

    pause(play, 1.0)

    assert moved(play) == ["c"]
    assert back(play, "c") == 1
    pause(play, 100 * AGAIN_S)
    assert moved(play) == [], "a is the last one of its stage"


def test_one_that_moved_and_died_is_followed_soon():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    pause(play, 2 * MOVE_S - 1.0)
    assert moved(play) == []

    pause(play, 1.0)

    assert moved(play) == ["c"]
    assert back(play, "c") == 1
    pause(play, 100 * AGAIN_S)
    assert moved(play) == [], "a is the last one of its stage"
