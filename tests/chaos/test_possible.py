"""Tests of `possible.py`: who has to live, and to reach whom, so that a step is possible."""

import pytest
from chaos.possible import Living, step_is_possible

from p2pswarm.run.chain.record import VoterId

STAGES = 2


def voter(number: int) -> VoterId:
    return VoterId(bytes([number]) * 32, bytes([number]) * 8)


TRAINER = Living(voter(0), trains=True)
STANDBY = Living(voter(1))
FIRST, FIRST_TOO = Living(voter(2), stage=0), Living(None, stage=0)
LAST = Living(voter(3), stage=1)
VOTERS = (voter(0), voter(1), voter(2))


def possible(*living: Living, electorates=(VOTERS,), cut=()) -> bool:
    def reaches(one: Living, other: Living) -> bool:
        return (one, other) not in cut and (other, one) not in cut

    return step_is_possible(living, STAGES, electorates, reaches)


def test_a_trainer_that_may_lead_a_majority_and_a_copy_of_each_stage_are_enough():
    assert possible(TRAINER, FIRST, LAST)


@pytest.mark.parametrize(
    "living",
    [
        pytest.param((STANDBY, FIRST, LAST), id="nobody may lead"),
        pytest.param((TRAINER, FIRST), id="a stage has no copy"),
        pytest.param((TRAINER, FIRST_TOO, LAST), id="one of three voters"),
    ],
)
def test_without_one_of_them_it_is_not_possible(living):
    assert not possible(*living)


def test_a_disk_that_is_lost_takes_the_vote_with_it():
    wiped = Living(VoterId(FIRST.voter.peer, bytes(8)), stage=0)

    assert not possible(TRAINER, wiped, LAST)


def test_a_record_that_is_accepted_and_not_decided_asks_its_voters_too():
    later = (voter(0), voter(7), voter(8))

    assert not possible(TRAINER, FIRST, LAST, electorates=(VOTERS, later))


@pytest.mark.parametrize("pair", [(TRAINER, FIRST), (TRAINER, LAST), (FIRST, LAST)])
def test_who_cannot_talk_counts_as_away(pair):
    assert not possible(TRAINER, FIRST, LAST, cut=(pair,))


def test_another_server_of_the_stage_leads_round_a_cut():
    assert possible(TRAINER, STANDBY, FIRST, FIRST_TOO, LAST, cut=((FIRST, LAST),))


def test_another_trainer_leads_round_a_cut():
    other = Living(voter(1), trains=True)

    assert possible(TRAINER, other, FIRST, LAST, cut=((TRAINER, LAST),))
    assert not possible(TRAINER, STANDBY, FIRST, LAST, cut=((TRAINER, LAST),))
