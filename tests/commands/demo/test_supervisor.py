"""Tests of `commands/demo/supervisor.py`."""

import random

import pytest

from p2pswarm.commands.demo.options import Options
from p2pswarm.commands.demo.supervisor import (
    RESTARTS_MAX,
    GiveUp,
    Kills,
    KillServer,
    Remark,
    StartServer,
    Supervisor,
)
from p2pswarm.progress.events import Ended, MicrobatchCounts, PeerLine, Peers, Stepped
from p2pswarm.progress.history import RunHistory


def history(*servers: tuple[str, int, bool]) -> RunHistory:
    told = RunHistory()
    told.on_event(
        Peers(tuple(PeerLine(name, stage, ready, 0, 0.0) for name, stage, ready in servers))
    )
    return told


def kill_steps(kills: Kills, steps: int) -> list[int]:
    done = []
    for step in range(1, steps + 1):
        if kills.due(step):
            kills.on_kill(step)
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


COUNTS = MicrobatchCounts(8, 8, 0)


def begun(replicas: int = 2, kill_every: int | None = 1) -> Supervisor:
    """A demo whose servers are up, two stages of them: server-1 is peer p1 of stage 1 ..."""
    options = Options(replicas=replicas, steps=100, kill_every=kill_every)
    supervisor = Supervisor(options, Kills(100, kill_every, random.Random(1)))
    supervisor.begin()
    names = [action.name for action in supervisor.actions()]
    for name in names:
        supervisor.on_peer(name, name.replace("server-", "p"))
    supervisor.on_event(peers(*range(1, len(names) + 1)))
    return supervisor


def peers(*numbers: int) -> Peers:
    return Peers(tuple(PeerLine(f"p{n}", n % 2, True, 0, 0.0) for n in numbers))


def stepped(step: int) -> Stepped:
    return Stepped(step, 3.0, 1000.0, 1e-3, 0.5, COUNTS, seconds=float(step))


@pytest.mark.parametrize(("stages", "replicas"), [(1, 1), (2, 3)])
def test_every_stage_gets_its_servers(stages, replicas):
    options = Options(stages=stages, replicas=replicas)
    supervisor = Supervisor(options, Kills(10, 0, random.Random(1)))

    supervisor.begin()

    expected = [StartServer(f"server-{n + 1}") for n in range(stages * replicas)]
    assert supervisor.actions() == expected
    assert supervisor.actions() == []


def test_a_kill_is_followed_by_another_server_and_by_no_complaint():
    supervisor = begun()

    supervisor.on_event(stepped(1))

    kill, remark, start = supervisor.actions()
    assert isinstance(kill, KillServer)
    assert "SIGKILL" in remark.text
    assert start == StartServer("server-5")
    assert len(supervisor.history.kills) == 1
    supervisor.on_server_end(kill.name, "")
    assert supervisor.actions() == []


def test_nobody_is_killed_before_it_is_time():
    supervisor = begun(kill_every=None)

    supervisor.on_event(stepped(49))

    assert supervisor.actions() == []


def test_where_each_is_needed_a_spare_one_comes_first_and_only_once():
    supervisor = begun(replicas=1)

    supervisor.on_event(stepped(1))
    supervisor.on_event(stepped(2))

    remark, start = supervisor.actions()
    assert "a spare one is started" in remark.text
    assert start == StartServer("server-3")
    supervisor.on_peer("server-3", "p3")
    supervisor.on_event(peers(1, 2, 3))
    supervisor.on_event(stepped(3))
    assert isinstance(supervisor.actions()[0], KillServer)


def test_a_server_whose_process_is_not_known_yet_is_spared():
    supervisor = begun()
    supervisor.on_event(peers(8, 9, 10, 11))

    supervisor.on_event(stepped(1))

    assert supervisor.actions() == []


def test_a_server_that_ends_by_itself_is_replaced_until_it_is_too_much():
    supervisor = begun()

    for n in range(RESTARTS_MAX):
        supervisor.on_server_end(f"server-{n + 1}", "no memory")
        assert supervisor.actions() == [
            Remark(f"server p{n + 1} ended by itself: no memory"),
            StartServer(f"server-{n + 5}"),
        ]

    supervisor.on_server_end("server-4", "no memory")
    assert supervisor.actions()[1] == GiveUp("servers end by themselves: no memory")


def test_a_server_that_ends_before_it_said_who_it_is_is_replaced_too():
    supervisor = begun()

    supervisor.on_server_end("server-99", "no such device")

    assert supervisor.actions()[0] == Remark("server server-99 ended by itself: no such device")


def test_servers_may_end_with_the_run():
    supervisor = begun()
    supervisor.on_event(Ended(1, "done", False, 1.0, COUNTS, seconds=1.0))

    supervisor.on_server_end("server-1", "")

    assert supervisor.actions() == []


def test_of_unequal_machines_two_are_slow():
    supervisor = Supervisor(Options(uneven=True, replicas=3), Kills(60, 0, random.Random(1)))
    supervisor.begin()

    assert [one.slow for one in supervisor.actions()] == [True, True, *[False] * 4]
