"""Pieces that another process of this node had fetched: used where they are right, not believed."""

import random

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from run.state.stage_of_donors import (
    HONEST,
    LIES,
    PIECES,
    Swarm,
    calm,
    digest_of,
    hash_of,
    hashes_of,
    true,
)

from p2pswarm.run.state.piece_download import HashesWanted, PieceDownload, PieceWanted, Placement

A = b"a"


def restored(pieces, version=3, content=None):
    download = PieceDownload(PIECES, 3)
    download.donors((A,))
    for piece in pieces:
        hashed = hash_of(content or true(piece, version))
        place = download.restored(piece, version, hashed)
        assert place == (Placement(piece, range(3, 3)) if version == 3 else None)
    return download


@settings(max_examples=examples(200))
@given(st.randoms(use_true_random=False), st.lists(st.sampled_from(LIES), max_size=2), st.data())
def test_whatever_is_on_disk_the_state_ends_whole(rng, liars, data):
    donors = {bytes([65 + n]): kind for n, kind in enumerate(liars)} | {b"z": HONEST}
    swarm = Swarm(donors, rng, kept=rng.choice([1, 16]))
    swarm.ask()
    for _ in range(data.draw(st.integers(0, 40))):
        match rng.randrange(5):
            case 0:
                swarm.commit()
            case 1 if swarm.waiting:
                swarm.hear()
            case 2 if rng.random() < 1 / 3:
                swarm.restart(damaged=rng.randrange(PIECES + 1))
                swarm.ask()
            case _ if swarm.under_way:
                swarm.deliver()
    for liar in [name for name, kind in swarm.donors.items() if kind == "future version"]:
        del swarm.donors[liar]
    for _ in range(8):
        swarm.commit()
    swarm.settle()

    assert swarm.whole


@given(st.randoms(use_true_random=False), st.integers(0, PIECES))
def test_no_piece_comes_twice_if_no_step_passed(rng, deliveries):
    swarm = Swarm({A: HONEST, b"b": HONEST}, rng)
    swarm.ask()
    for _ in range(deliveries):
        swarm.deliver()
    placed = swarm.placed

    assert swarm.restart() == placed
    swarm.settle()

    assert swarm.whole
    assert swarm.placed == PIECES


@given(st.integers(1, PIECES))
def test_what_was_damaged_on_disk_is_fetched_and_nobody_is_blamed(damaged):
    swarm = calm(A)
    swarm.download.agreed(0, digest_of(0))
    swarm.ask()
    while swarm.placed < PIECES:
        swarm.deliver()

    swarm.restart(damaged=damaged)
    swarm.settle()

    assert swarm.whole
    assert swarm.placed == PIECES + damaged
    assert swarm.blamed == []


def test_after_a_step_nothing_of_it_is_of_use():
    swarm = calm(A)
    swarm.ask()
    for _ in range(PIECES):
        swarm.deliver()
    swarm.commit()

    assert swarm.restart() == 0


def test_a_restored_piece_is_not_asked_for_and_its_hashes_are():
    download = restored([0, 2])

    wanted = download.wanted(0.0)

    assert HashesWanted(A, 3) in wanted
    assert [one.piece for one in wanted if isinstance(one, PieceWanted)] == [1, 3]


def test_it_is_proved_by_the_hashes_of_its_version():
    download = restored(range(PIECES))
    download.agreed(3, digest_of(3))
    assert not download.complete

    download.wanted(0.0)
    download.hashes_came(A, 3, hashes_of(3))

    assert download.complete
    assert download.blames() == []


@pytest.mark.parametrize("content", [true(2, 3), ("other", 2, 3)])
def test_one_that_comes_after_the_hashes_is_judged_at_once(content):
    download = restored([0])
    download.agreed(3, digest_of(3))
    download.wanted(0.0)
    download.hashes_came(A, 3, hashes_of(3))
    download.donor_failed(A, 0.0)

    place = download.restored(2, 3, hash_of(content))

    assert (place is not None) is (content == true(2, 3))
    assert (2 in download.held) is (content == true(2, 3))


@pytest.mark.parametrize("version", [2, 4])
def test_one_of_another_version_is_of_no_use(version):
    assert restored([0], version=version).held == {}


def test_one_that_is_here_or_on_its_way_is_left_alone():
    download = restored([0])
    download.wanted(0.0)

    assert download.restored(0, 3, hash_of(true(0, 3))) is None
    assert download.restored(1, 3, hash_of(true(1, 3))) is None


def test_one_follows_commits_like_any_other():
    swarm = Swarm({A: HONEST}, random.Random(1))
    swarm.ask()
    for _ in range(3):
        swarm.deliver()
    swarm.restart()
    swarm.commit()
    swarm.settle()

    assert swarm.whole
    assert swarm.placed == PIECES


def test_nothing_is_worth_keeping_while_the_stage_averages():
    download = restored([0, 1])
    assert download.worth_keeping == download.held == {0: 3, 1: 3}

    download.averaging(now=True)

    assert download.worth_keeping == {}
