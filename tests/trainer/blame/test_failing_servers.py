"""Servers that fail in a row are avoided for a time that grows; one success clears them."""

from p2pswarm.trainer.blame.failing_servers import (
    IN_A_ROW,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    RECOVERED,
    SAME_TROUBLE_S,
    Duty,
    FailingServers,
)

ANN, BOB = b"a" * 32, b"b" * 32
WORK, AVERAGE = Duty.MICROBATCHES, Duty.AVERAGING


def test_failures_are_counted_in_a_row_for_each_duty():
    servers = FailingServers()

    counts = [servers.failed(ANN, WORK, now_s) for now_s in (0.0, 1.0, 2.0)]
    other = servers.failed(ANN, AVERAGE, 2.0)
    servers.worked(ANN, WORK)

    assert counts == [1, 2, 3]
    assert other == 1
    assert servers.failed(ANN, WORK, 3.0) == 1
    assert servers.failed(ANN, AVERAGE, 3.0) == 2


def test_failures_at_one_moment_are_one():
    servers = FailingServers()
    servers.failed(ANN, WORK, 5.0)

    assert servers.failed(ANN, WORK, 5.0 + 0.9 * SAME_TROUBLE_S) == 1
    assert servers.failed(ANN, WORK, 5.0 + SAME_TROUBLE_S) == 2


def test_each_relapse_doubles_the_pause_up_to_a_bound():
    servers = FailingServers()

    pauses_s = [servers.avoid(ANN, 0.0) for _ in range(9)]

    assert pauses_s[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses_s[-1] == PAUSE_MAX_S


def test_a_pause_ends():
    servers = FailingServers()
    servers.avoid(ANN, 100.0)

    assert servers.avoided(ANN, 99.9 + PAUSE_FIRST_S)
    assert not servers.avoided(ANN, 100.0 + PAUSE_FIRST_S)
    assert not servers.avoided(BOB, 100.0)
    assert servers.next_deadline_s(100.0) == 100.0 + PAUSE_FIRST_S
    assert servers.next_deadline_s(100.0 + PAUSE_FIRST_S) is None


def test_once_the_cause_is_known_the_suspicion_against_others_is_dropped():
    servers = FailingServers()
    for now_s in (0.0, 1.0):
        servers.failed(ANN, WORK, now_s)
        servers.failed(BOB, WORK, now_s)

    servers.forget([ANN, BOB])

    assert servers.failed(BOB, WORK, 3.0) == 1


def test_one_that_works_well_for_long_begins_anew():
    servers = FailingServers()
    servers.avoid(ANN, 0.0)
    for _ in range(RECOVERED):
        servers.worked(ANN, WORK)

    assert servers.avoid(ANN, 0.0) == PAUSE_FIRST_S


def test_good_microbatches_forgive_no_bad_averaging():
    servers = FailingServers()
    servers.failed(ANN, AVERAGE, 0.0)
    for _ in range(2 * RECOVERED):
        servers.worked(ANN, WORK)

    assert servers.failed(ANN, AVERAGE, 1.0) == 2


def test_with_too_many_the_longest_known_is_forgotten():
    servers = FailingServers(peers_max=1)
    servers.failed(ANN, WORK, 0.0)
    servers.failed(BOB, WORK, 0.0)

    assert servers.failed(ANN, WORK, 9.0) == 1
    assert IN_A_ROW > 1


def test_some_good_work_does_not_clear_the_past():
    servers = FailingServers()
    servers.avoid(ANN, 0.0)
    for now_s in (0.0, 1.0):
        for _ in range(RECOVERED - 2):
            servers.worked(ANN, WORK)
        servers.failed(ANN, AVERAGE, now_s)
        servers.worked(ANN, AVERAGE)

    assert servers.avoid(ANN, 0.0) == 2 * PAUSE_FIRST_S
