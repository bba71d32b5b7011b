"""A server's seconds: each counts once, in the first phase that fits."""

import random

import pytest

from p2pswarm.run.messages.field_limits import Work
from p2pswarm.server.waits.phase_clock import PhaseClock, ServerPhase, phase_of

P = ServerPhase


def test_what_is_computed_behind_a_transfer_costs_nothing():
    clock = PhaseClock(0.0)
    clock.on_begin(P.TRANSFER, 1.0)
    clock.on_begin(P.FORWARD, 2.0)
    clock.on_end(P.FORWARD, 5.0)
    clock.on_end(P.TRANSFER, 6.0)

    lap = clock.lap(0, 10.0)

    assert (lap.forward_s, lap.transfer_s, lap.waiting_s) == (3.0, 2.0, 5.0)
    assert lap.sum_s == 10.0


def test_an_order_that_is_carried_out_twice_tells_the_whole_step_again():
    clock = PhaseClock(0.0)
    clock.lap(0, 1.0)

    first = clock.lap(1, 4.0)
    again = clock.lap(1, 6.0)
    following = clock.lap(2, 7.0)

    assert (first.sum_s, again.sum_s, following.sum_s) == (3.0, 5.0, 1.0)


def test_a_late_order_of_an_earlier_step_tells_nothing_and_takes_nothing_from_the_present_one():
    clock = PhaseClock(0.0)
    clock.lap(0, 1.0)
    clock.lap(1, 4.0)

    assert clock.lap(0, 5.0) is None
    assert clock.lap(2, 7.0).sum_s == 3.0


def test_two_transfers_at_once_are_over_with_the_last():
    clock = PhaseClock(0.0)
    for begin_s in (0.0, 1.0):
        clock.on_begin(P.TRANSFER, begin_s)
    clock.on_end(P.TRANSFER, 2.0)
    clock.on_end(P.TRANSFER, 4.0)

    assert clock.lap(0, 5.0).transfer_s == 4.0


@pytest.mark.parametrize("seed", range(5))
def test_whatever_overlaps_the_parts_add_up_to_the_time_between_two_laps(seed):
    rng, clock, now_s = random.Random(seed), PhaseClock(0.0), 0.0
    under_way, lap_s = [], 0.0

    for step in range(20):
        for _ in range(rng.randrange(30)):
            now_s += rng.random()
            if under_way and rng.random() < 0.5:
                clock.on_end(under_way.pop(rng.randrange(len(under_way))), now_s)
            else:
                under_way.append(rng.choice(list(P)))
                clock.on_begin(under_way[-1], now_s)
        assert clock.lap(step, now_s).sum_s == pytest.approx(now_s - lap_s)
        lap_s = now_s


def test_a_held_out_batch_is_a_forward():
    assert [phase_of(work) for work in Work] == [P.FORWARD, P.BACKWARD, P.FORWARD]
