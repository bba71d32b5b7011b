"""Where a step's seconds went: rows by what servers claim, and the chain by the trainer's clock."""

import math
import random

import pytest

from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.waits import AskWhy, JourneyPart, RunWhy, StepSeconds
from p2pswarm.trainer.step.stalls import JourneyHop
from p2pswarm.trainer.step.step_times import NO_JOURNEY, LastJourney, StepTimes

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)
J = JourneyPart


def step(times: StepTimes, number: int, begun_s: float, claims, journey=NO_JOURNEY, stages=2):
    """A step of 10 s: all counted after 8 s, averaged after 9 s."""
    times.on_reduce(journey, begun_s + 8.0)
    for one, stage in claims:
        times.on_answer(one, stage, begun_s + 9.0)
    times.on_averaging(begun_s + 9.0)
    told = times.on_commit(number, stages, None, begun_s + 10.0)
    for (one, _), claim in claims.items():
        told += times.on_claim(one, number, claim)
    return told


def claim(**seconds: float) -> StepSeconds:
    return StepSeconds(**{f"{name}_s": value for name, value in seconds.items()})


WORKS = {
    (ANN, 0): claim(forward=2.0, backward=4.0, waiting=3.0, averaging=1.0),
    (BOB, 1): claim(forward=8.0, waiting=1.0, averaging=1.0),
}


def test_nothing_is_told_of_a_step_whose_beginning_was_not_seen():
    assert step(StepTimes(), 0, 0.0, WORKS) == []


def test_a_row_is_the_mean_of_its_servers_and_names_the_one_that_waited_least():
    times, cid = StepTimes(), Incarnation(b"c" * 32, 3)
    both = WORKS | {(cid, 1): claim(forward=4.0, waiting=5.0, averaging=1.0)}
    step(times, 0, 0.0, both)

    (told,) = step(times, 1, 10.0, both)

    assert told.duration_s == 10.0
    assert [row.servers for row in told.stages] == [1, 2]
    assert told.stages[1].seconds == claim(forward=6.0, waiting=3.0, averaging=1.0)
    assert told.stages[1].slowest == BOB.peer
    assert [row.seconds.sum_s for row in told.stages] == [10.0, 10.0]


def test_a_server_that_came_in_between_is_in_no_row():
    times = StepTimes()
    step(times, 0, 0.0, {(ANN, 0): WORKS[ANN, 0]})

    (told,) = step(times, 1, 10.0, WORKS)

    assert [row.servers for row in told.stages] == [1, 0]


def test_what_one_member_does_not_tell_is_told_without_it_when_the_next_step_ends():
    times = StepTimes()
    step(times, 0, 0.0, WORKS)
    mute = {(BOB, 1): WORKS[BOB, 1], (ANN, 0): None}
    times.on_reduce(NO_JOURNEY, 18.0)
    for one, stage in mute:
        times.on_answer(one, stage, 19.0)
    assert times.on_commit(1, 2, None, 20.0) == []
    assert times.on_claim(BOB, 1, WORKS[BOB, 1]) == []

    told, _ = step(times, 2, 20.0, WORKS)

    assert (told.step, [row.servers for row in told.stages]) == (1, [0, 1])
    assert times.on_claim(ANN, 1, WORKS[ANN, 0]) == []


def test_who_is_no_member_or_tells_twice_moves_no_row():
    times = StepTimes()
    step(times, 0, 0.0, WORKS)
    (told,) = step(times, 1, 10.0, WORKS)

    assert times.on_claim(ANN, 1, claim(forward=10.0)) == []
    assert times.on_claim(Incarnation(b"z" * 32, 9), 1, claim(forward=10.0)) == []
    assert told.stages[0].servers == 1


@pytest.mark.parametrize("lie", [claim(forward=1e9), claim(), claim(waiting=14.0)])
def test_a_claim_that_does_not_fit_the_step_moves_no_row_and_is_counted(lie):
    times = StepTimes()
    step(times, 0, 0.0, WORKS)

    (told,) = step(times, 1, 10.0, WORKS | {(BOB, 1): lie})

    assert (told.stages[1].servers, told.stages[1].doubtful) == (0, 1)
    assert told.stages[0].servers == 1


def test_the_chain_goes_through_the_last_microbatch_and_the_last_that_averaged():
    hops = (
        JourneyHop(0, ANN, returning=False, at_s=15.0),
        JourneyHop(1, BOB, returning=False, at_s=15.5),
        JourneyHop(0, ANN, returning=True, at_s=17.0),
        JourneyHop(-1, None, returning=True, at_s=17.9),
    )
    times = StepTimes()
    step(times, 0, 0.0, WORKS)

    (told,) = step(times, 1, 10.0, WORKS, LastJourney(14.5, hops))

    chain = [(J(one.part), one.stage, one.peer, round(one.seconds, 6)) for one in told.chain]
    assert chain == [
        (J.FILLING, 1, BOB.peer, 4.5),
        (J.LAUNCH, None, b"", 0.5),
        (J.FORWARD, 0, ANN.peer, 0.5),
        (J.FORWARD, 1, BOB.peer, 1.5),
        (J.BACKWARD, 0, ANN.peer, 0.9),
        (J.CLOSING, None, b"", 0.1),
        (J.AVERAGING, 0, ANN.peer, 1.0),
        (J.DECIDING, None, b"", 1.0),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_notes_say_the_chain_adds_up_to_the_step(seed):
    """Notes overtake each other, and with a delay a microbatch sets out before its step begins."""
    rng, times = random.Random(seed), StepTimes()
    step(times, 0, 0.0, WORKS)
    hops = tuple(
        JourneyHop(rng.randrange(-1, 2), rng.choice([ANN, BOB, None]), rng.random() < 0.5, at_s)
        for at_s in [rng.uniform(0.0, 20.0) for _ in range(rng.randrange(8))]
    )

    (told,) = step(times, 1, 10.0, WORKS, LastJourney(rng.uniform(0.0, 20.0), hops))

    assert math.fsum(one.seconds for one in told.chain) == pytest.approx(told.duration_s)
    assert all(one.seconds > 0 for one in told.chain)


def test_a_run_of_the_most_stages_fits_into_an_answer():
    times, stages = StepTimes(), 256
    members = [(Incarnation(bytes([stage]) * 32, stage), stage) for stage in range(stages)]
    claims = dict.fromkeys(members, claim(forward=8.1, waiting=0.9, averaging=1.0))
    hops = tuple(
        JourneyHop(stage, one, returning, 1.0 + stage / 1000)
        for returning in (False, True)
        for one, stage in members
    )
    step(times, 0, 0.0, claims)
    (told,) = step(times, 1, 10.0, claims, LastJourney(11.0, hops), stages=stages)

    answer = RunWhy(2, told.duration_s, 10.0, 1.0, told.stages, told.chain, "x" * 500)

    assert decode(encode(answer)) == answer
    assert decode(encode(AskWhy(b"r" * 16))) == AskWhy(b"r" * 16)
