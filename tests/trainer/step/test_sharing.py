"""What servers hand on to one that has come to their stage in the middle of a step."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.run.messages.types import Work
from p2pswarm.settings.config import BatchConfig
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import MicrobatchJob
from p2pswarm.trainer.step.sharing import HANDED_ON_MAX, SHARED_MIN, Sharing

SIX = replace(CONFIG, batch=BatchConfig(microbatches=6, evaluate_every=0, window=6))


def jobs(*numbers: int) -> list[MicrobatchJob]:
    return [MicrobatchJob(number, Work.FORWARD) for number in numbers]


def numbers(surplus: list[MicrobatchJob]) -> list[int]:
    return [job.microbatch for job in surplus]


def test_the_newest_of_what_is_more_than_its_share_is_handed_on():
    assert numbers(Sharing().surplus([jobs(1, 2, 3, 4, 5), []])) == [4, 5]


def test_a_server_with_little_to_do_hands_on_nothing():
    assert Sharing().surplus([jobs(1, 2), []]) == []
    assert Sharing().surplus([jobs(1, 2, 3), jobs(4, 5, 6)]) == []


def test_a_microbatch_is_handed_on_a_few_times_and_no_more():
    sharing = Sharing()
    for _ in range(HANDED_ON_MAX):
        assert numbers(sharing.surplus([jobs(1, 2, 3, 4), []])) == [3, 4]

    assert numbers(sharing.surplus([jobs(5, 6, 3, 4), []])) == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6))
def test_every_server_keeps_its_share_and_comers_and_goers_move_each_microbatch_few_times(loads):
    sharing, first = Sharing(), 0
    there = []
    for load in loads:
        there.append(jobs(*range(first, first + load)))
        first += load
    share = -(-first // len(loads))

    for _ in range(HANDED_ON_MAX):
        moved = numbers(sharing.surplus(there))

        for mine in there:
            kept = [job for job in mine if job.microbatch not in moved]
            assert len(kept) == (min(len(mine), share) if len(mine) >= SHARED_MIN else len(mine))
    assert sharing.surplus(there) == []


def test_a_server_that_comes_in_the_middle_of_a_step_gets_its_share():
    play = Play(SIX)
    ann = play.serve("a")
    assert len(play.seen(act.Launch)) == 6
    for microbatch in range(6):
        play.hand(ann, microbatch)

    bob = play.serve("b")
    play.promise(ann, bob)
    play.wait(1.0)

    again = {one.microbatch for one in play.seen(act.Launch) if one.attempt == 1}
    assert again == {3, 4, 5}


def test_what_is_counted_stays_where_it_is():
    play = Play(SIX)
    ann = play.serve("a")
    for microbatch in range(6):
        play.hand(ann, microbatch)
    play.count(ann, 0, 1, 2, 3)

    bob = play.serve("b")
    play.promise(ann, bob)
    play.wait(1.0)

    assert not [one for one in play.seen(act.Launch) if one.attempt]
