"""Whom the demo kills, and when."""

import random

import pytest

from p2pswarm.commands.demo.kills import Kills
from p2pswarm.progress.events import PeerLine, Peers
from p2pswarm.progress.history import RunHistory


def history(*servers: tuple[str, int, bool]) -> RunHistory:
    told = RunHistory()
    told.told(
        Peers(0.0, tuple(PeerLine(name, stage, ready, 0, 0.0) for name, stage, ready in servers))
    )
    return told


def kill_steps(kills: Kills, steps: int) -> list[int]:
    done = []
    for step in range(1, steps + 1):
        if kills.due(step):
            kills.done(step)
            done.append(step)
    return done


@pytest.mark.parametrize(
    ("steps", "every", "at"),
    [
        (100, None, [50]),
        (3, None, [1]),
        (1, None, []),
        (100, 0, []),
        (100, 30, [30, 60, 90]),
        (10, 5, [5]),
        (10, 20, []),
    ],
)
def test_kills_come_half_way_or_as_often_as_asked(steps, every, at):
    assert kill_steps(Kills(steps, every, random.Random(1)), steps) == at


def test_a_kill_that_had_to_wait_is_still_owed():
    kills = Kills(100, None, random.Random(1))

    assert not kills.due(49)
    assert kills.due(50)
    assert kills.due(60)


def test_the_last_ready_server_of_a_stage_is_spared():
    kills = Kills(100, 1, random.Random(1))

    assert kills.victim(history(("a", 0, True), ("b", 1, True))) is None
    assert kills.victim(history(("a", 0, True), ("b", 0, False))) is None
    assert kills.victim(history()) is None


@pytest.mark.parametrize("seed", range(20))
def test_a_victim_is_ready_and_leaves_a_ready_one_behind(seed):
    kills = Kills(100, 1, random.Random(seed))
    told = history(("a", 0, True), ("b", 1, True), ("c", 1, False), ("d", 1, True))

    assert kills.victim(told) in ("b", "d")
