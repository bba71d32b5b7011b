"""What the demo does with its servers: it replaces those that end, and kills when it is time."""

import random

import pytest

from p2pswarm.commands.demo.kills import Kills
from p2pswarm.commands.demo.options import Options
from p2pswarm.commands.demo.supervisor import (
    RESTARTS_MAX,
    GiveUp,
    KillServer,
    Remark,
    StartServer,
    Supervisor,
)
from p2pswarm.progress.events import Ended, MicrobatchCounts, PeerLine, Peers, Stepped

COUNTS = MicrobatchCounts(8, 8, 0)


def begun(replicas: int = 2, kill_every: int | None = 1) -> Supervisor:
    """A demo whose servers are up, two stages of them: server-1 is peer p1 of stage 1 ..."""
    options = Options(replicas=replicas, steps=100, kill_every=kill_every)
    supervisor = Supervisor(options, Kills(100, kill_every, random.Random(1)))
    supervisor.begin()
    names = [action.name for action in supervisor.actions()]
    for name in names:
        supervisor.met(name, name.replace("server-", "p"))
    supervisor.told(peers(*range(1, len(names) + 1)))
    return supervisor


def peers(*numbers: int) -> Peers:
    return Peers(0.0, tuple(PeerLine(f"p{n}", n % 2, True, 0, 0.0) for n in numbers))


def stepped(step: int) -> Stepped:
    return Stepped(float(step), step, 3.0, 1000.0, 1e-3, 0.5, COUNTS)


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

    supervisor.told(stepped(1))

    kill, remark, start = supervisor.actions()
    assert isinstance(kill, KillServer)
    assert "SIGKILL" in remark.text
    assert start == StartServer("server-5")
    assert len(supervisor.history.kills) == 1
    supervisor.server_ended(kill.name, "")
    assert supervisor.actions() == []


def test_nobody_is_killed_before_it_is_time():
    supervisor = begun(kill_every=None)

    supervisor.told(stepped(49))

    assert supervisor.actions() == []


def test_where_each_is_needed_a_spare_one_comes_first_and_only_once():
    supervisor = begun(replicas=1)

    supervisor.told(stepped(1))
    supervisor.told(stepped(2))

    remark, start = supervisor.actions()
    assert "a spare one is started" in remark.text
    assert start == StartServer("server-3")
    supervisor.met("server-3", "p3")
    supervisor.told(peers(1, 2, 3))
    supervisor.told(stepped(3))
    assert isinstance(supervisor.actions()[0], KillServer)


def test_a_server_whose_process_is_not_known_yet_is_spared():
    supervisor = begun()
    supervisor.told(peers(8, 9, 10, 11))

    supervisor.told(stepped(1))

    assert supervisor.actions() == []


def test_a_server_that_ends_by_itself_is_replaced_until_it_is_too_much():
    supervisor = begun()

    for n in range(RESTARTS_MAX):
        supervisor.server_ended(f"server-{n + 1}", "no memory")
        assert supervisor.actions() == [
            Remark(f"server p{n + 1} ended by itself: no memory"),
            StartServer(f"server-{n + 5}"),
        ]

    supervisor.server_ended("server-4", "no memory")
    assert supervisor.actions()[1] == GiveUp("servers end by themselves: no memory")


def test_a_server_that_ends_before_it_said_who_it_is_is_replaced_too():
    supervisor = begun()

    supervisor.server_ended("server-99", "no such device")

    assert supervisor.actions()[0] == Remark("server server-99 ended by itself: no such device")


def test_servers_may_end_with_the_run():
    supervisor = begun()
    supervisor.told(Ended(1.0, 1, "done", False, 1.0, COUNTS))

    supervisor.server_ended("server-1", "")

    assert supervisor.actions() == []


def test_of_unequal_machines_two_are_slow():
    supervisor = Supervisor(Options(uneven=True, replicas=3), Kills(60, 0, random.Random(1)))
    supervisor.begin()

    assert [one.slow for one in supervisor.actions()] == [True, True, *[False] * 4]
