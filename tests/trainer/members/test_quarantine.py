"""Tests of `trainer/members/quarantine.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, RUN, Play

from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.messages.field_limits import TRAINERS_MAX, VOTERS_MAX
from p2pswarm.run.messages.trainers import (
    QUARANTINE_MAX_S,
    QUARANTINE_TIMES_MAX,
    QUARANTINES_MAX,
    QuarantinedPeer,
    Trainers,
    Whereabouts,
)
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.members.quarantine import QUARANTINE_S, Quarantines


def peer(number: int) -> bytes:
    return number.to_bytes(32, "big")


LIAR, OTHER = peer(1), peer(2)


def told(coordinator: Quarantines, now_s: float, by_s: float = 0.0) -> Quarantines:
    """What a standby knows whose clock is so much ahead."""
    standby = Quarantines()
    standby.on_coordinator(coordinator.peers(now_s), now_s + by_s)
    return standby


def test_each_is_twice_as_long_as_the_one_before_up_to_a_day():
    known = Quarantines()

    lasts_s = [known.begin(LIAR, 0.0) for _ in range(2 * QUARANTINE_TIMES_MAX)]

    assert lasts_s[:3] == [QUARANTINE_S, 2 * QUARANTINE_S, 4 * QUARANTINE_S]
    assert lasts_s[-1] == QUARANTINE_MAX_S == max(lasts_s)
    assert known.begin(OTHER, 0.0) == QUARANTINE_S


@given(st.floats(0.0, 2 * QUARANTINE_S), st.floats(-1e6, 1e6))
def test_a_standby_knows_what_is_left_by_its_own_clock(passed_s: float, by_s: float):
    coordinator = Quarantines()
    coordinator.begin(LIAR, 0.0)

    standby = told(coordinator, passed_s, by_s)

    left_s = max(0.0, QUARANTINE_S - passed_s)
    assert standby.ends_s(LIAR) - (passed_s + by_s) == pytest.approx(left_s, abs=1e-6)
    assert standby.ends_s(OTHER) < 0.0


def test_a_liar_has_no_fresh_start_with_the_next_coordinator():
    coordinator = Quarantines()
    coordinator.begin(LIAR, 0.0)

    standby = told(coordinator, 2 * QUARANTINE_S)

    assert standby.begin(LIAR, 2 * QUARANTINE_S) == 2 * QUARANTINE_S


def test_nobody_takes_back_what_a_trainer_knows():
    standby = Quarantines()
    standby.begin(LIAR, 0.0)
    standby.begin(LIAR, 0.0)

    standby.on_coordinator((), 1.0)
    standby.on_coordinator((QuarantinedPeer(LIAR, 1, 0.0),), 1.0)

    assert standby.ends_s(LIAR) == 2 * QUARANTINE_S
    assert standby.begin(LIAR, 0.0) == 4 * QUARANTINE_S


def test_a_coordinator_that_names_many_fills_no_memory_and_its_message_is_not_too_long():
    many = Quarantines()
    for number in range(3 * QUARANTINES_MAX):
        many.begin(peer(number), 0.0)
    where = Whereabouts(LIAR, "x" * 300)
    message = Trainers(RUN, 1, (where,) * TRAINERS_MAX, (where,) * 2 * VOTERS_MAX, many.peers(0.0))

    assert decode(encode(message)) == message
    assert len(many) == QUARANTINES_MAX


def test_a_coordinator_gives_no_work_to_one_that_another_had_found():
    known = Quarantines()
    known.begin(b"c" * 32, 0.0)
    play = Play(CONFIG)
    play.coordinator = Coordinator(CONFIG, RUN, quarantines=known)
    ann, bob = play.serve("a"), play.serve("b")

    carl = play.serve("c")

    alive = play.coordinator.members.alive
    assert [alive(one).ready for one in (ann, bob, carl)] == [True, True, False]
