"""The end of a run is believed with a proof; nothing else is taken for it."""

from dataclasses import replace

import pytest

from p2pswarm.node.run.run_end import KnownRun
from p2pswarm.run.chain.chain import Genesis

RUN, FOUNDER, STRANGER, LATER = b"r" * 16, b"f" * 32, b"s" * 32, b"t" * 32
HEAD = Genesis.founded(RUN, FOUNDER, 2, 4).head()
STEPS = 100


def known(version: int | None = None, decided: int = 0, trainers: tuple[bytes, ...] = ()):
    head = replace(HEAD, version=decided, trainers=trainers or HEAD.trainers)
    return KnownRun(RUN, STEPS, version, head)


def test_a_newcomer_believes_the_founder_whose_id_is_in_the_runs():
    assert known().is_over(FOUNDER, RUN, STEPS)


@pytest.mark.parametrize("said_by", [STRANGER, None])
def test_a_newcomer_believes_nobody_else(said_by):
    assert not known().is_over(said_by, RUN, STEPS)


def test_a_trainer_that_the_records_name_is_believed_and_one_that_they_shut_out_is_not():
    later = known(trainers=(LATER,))

    assert later.is_over(LATER, RUN, STEPS)
    assert not later.is_over(FOUNDER, RUN, STEPS)


@pytest.mark.parametrize("one", [known(version=STEPS), known(decided=STEPS)])
def test_who_has_seen_the_last_step_needs_no_more_than_the_word(one):
    assert one.is_over(STRANGER, RUN, STEPS)
    assert one.is_over(None, RUN, None)


@pytest.mark.parametrize("version", [0, STEPS - 1])
def test_a_run_that_ends_before_its_last_step_is_not_over(version):
    assert not known(version=version).is_over(FOUNDER, RUN, version)


def test_a_word_without_a_number_proves_nothing_by_itself():
    assert not known(version=STEPS - 1).is_over(FOUNDER, RUN, None)


def test_the_end_of_another_run_is_not_this_ones():
    assert not known(version=STEPS).is_over(FOUNDER, b"o" * 16, STEPS)


def test_an_owner_may_end_its_run_before_the_last_step():
    """As at the end of a budget: a machine that costs money does not wait for more."""
    assert known().is_over(FOUNDER, RUN, STEPS - 1, on_purpose=True)


@pytest.mark.parametrize(
    ("said_by", "run", "version"),
    [(STRANGER, RUN, 1), (None, RUN, 1), (FOUNDER, b"o" * 16, 1), (FOUNDER, RUN, None)],
)
def test_an_end_on_purpose_is_believed_of_a_trainer_of_the_run_alone(said_by, run, version):
    assert not known(version=1).is_over(said_by, run, version, on_purpose=True)
