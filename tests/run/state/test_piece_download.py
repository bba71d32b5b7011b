"""A state that comes in pieces from donors that die, lie and move on."""

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

from p2pswarm.run.state.piece_download import (
    RETRY_S,
    DownloadLimits,
    HashesWanted,
    PieceDownload,
    PieceWanted,
    Placement,
    StepParts,
)
from p2pswarm.tensors.state_tree import root_of

A, B, C, D = b"a", b"b", b"c", b"d"


def download(since=3, pieces=2, donors=(A,), **limits):
    one = PieceDownload(pieces, since, DownloadLimits(**limits))
    one.donors(donors)
    return one


def come(one, donor, piece, version, content=None):
    hashed = hash_of(content or true(piece, version))
    return one.piece_came(donor, piece, version, hashed, 0.0)


@settings(max_examples=examples(300))
@given(
    st.randoms(use_true_random=False),
    st.lists(st.sampled_from([HONEST, *LIES]), max_size=5),
    st.integers(0, 80),
)
def test_whatever_donors_do_the_state_ends_whole(rng, others, events):
    """One of the donors is honest and stays; the rest die, lie, and move on in any order."""
    donors = {bytes([65 + n]): kind for n, kind in enumerate(others)} | {b"z": HONEST}
    swarm = Swarm(donors, rng, since=rng.randrange(3), kept=rng.choice([1, 3, 16]))
    swarm.ask()
    for _ in range(events):
        match rng.randrange(6):
            case 0:
                swarm.commit()
            case 1 if swarm.waiting:
                swarm.hear(missed=rng.random() < 1 / 4)
            case 2 if len(swarm.donors) > 1 and rng.random() < 1 / 4:
                swarm.donors.pop(min(swarm.donors))
            case _ if swarm.under_way:
                swarm.deliver()
            case _:
                swarm.ask()
        assert swarm.whole or not swarm.download.complete

    swarm.download.donors(sorted(swarm.donors))
    for liar in [name for name, kind in swarm.donors.items() if kind == "future version"]:
        del swarm.donors[liar]  # who claims what is still to come is found out when it has come
    for _ in range(8):
        swarm.commit()
    swarm.settle()

    assert swarm.whole
    assert swarm.download.version == swarm.version


@given(st.randoms(use_true_random=False), st.lists(st.booleans(), max_size=60))
def test_no_piece_comes_twice_however_many_steps_pass(rng, moves):
    swarm = Swarm(dict.fromkeys((A, B, C), HONEST), rng, kept=60)
    swarm.ask()
    for move in moves:
        if move:
            swarm.commit()
            swarm.hear()
        elif swarm.under_way:
            swarm.deliver()
    swarm.settle()

    assert swarm.whole
    assert swarm.placed == PIECES
    assert swarm.blamed == []


@given(st.randoms(use_true_random=False), st.integers(0, 30))
def test_only_what_a_dead_donor_was_sending_is_asked_again(rng, when):
    swarm = Swarm(dict.fromkeys((A, B), HONEST), rng)
    swarm.ask()
    asked = len(swarm.under_way)
    for _ in range(min(when, PIECES)):
        swarm.deliver()
    del swarm.donors[A]
    swarm.download.donors([B])
    swarm.settle()

    assert asked == 4
    assert swarm.whole
    assert swarm.placed == PIECES


def test_three_donors_send_at_once_and_a_fourth_waits_for_its_turn():
    swarm = calm(A, B, C, D)
    swarm.ask()

    assert [one.donor for one in swarm.under_way] == [A, B, C, A, B, C]
    assert sorted(one.piece for one in swarm.under_way) == [0, 1, 2, 3, 4, 5]

    swarm.download.donor_failed(B, 0.0)
    assert {one.donor for one in swarm.download.wanted(0.0)} == {D}


def test_pieces_are_asked_of_the_version_that_commits_follow():
    one = download(since=3)

    assert one.wanted(0.0) == [PieceWanted(A, 0, 3), PieceWanted(A, 1, 3)]
    assert one.wanted(0.0) == []


def test_a_commit_is_applied_to_what_is_here_and_kept_for_what_is_coming():
    one = download(since=3)
    one.wanted(0.0)
    assert come(one, A, 0, 3) == Placement(0, range(3, 3))

    assert one.committed(3) == StepParts(apply=(0,), keep=(1,))
    assert one.committed(4) == StepParts(apply=(0,), keep=(1,))

    assert come(one, A, 1, 4) == Placement(1, range(4, 5))
    assert one.version == 5
    assert one.committed(5) == StepParts(apply=(0, 1), keep=())


def test_a_piece_that_is_ahead_waits_for_the_newcomer():
    one = download(since=3)
    one.wanted(0.0)
    come(one, A, 0, 5)

    assert one.committed(3).apply == ()
    assert one.committed(4).apply == ()
    assert one.committed(5).apply == (0,)


def test_what_cannot_follow_a_missed_reduction_is_asked_again():
    one = download(since=3, pieces=3, ahead=3)
    one.wanted(0.0)
    come(one, A, 0, 3)
    come(one, A, 1, 4)

    one.missed(3)

    assert come(one, A, 2, 3) is None
    assert one.wanted(0.0)[-2:] == [PieceWanted(A, 0, 4), PieceWanted(A, 2, 4)]


def test_so_many_parts_are_kept_for_a_piece_and_no_more():
    one = download(since=3, kept=2, pieces=1)
    one.wanted(0.0)
    for step in (3, 4, 5):
        one.committed(step)

    assert come(one, A, 0, 3) is None
    one.wanted(0.0)
    one.committed(6)
    one.committed(7)
    assert come(one, A, 0, 6) == Placement(0, range(6, 8))


def test_a_commit_out_of_order_is_our_own_mistake():
    one = download(since=3)

    with pytest.raises(ValueError, match="step 4 to version 3"):
        one.committed(4)
    with pytest.raises(ValueError, match="step 2 to version 3"):
        one.missed(2)


def test_a_state_is_whole_when_every_piece_is_proved():
    one = download(since=3, pieces=PIECES, ahead=PIECES)
    one.wanted(0.0)
    for piece in range(PIECES):
        come(one, A, piece, 3)
    assert one.wanted(0.0) == [HashesWanted(A, 3)]
    assert not one.complete

    one.hashes_came(A, 3, hashes_of(3))
    assert one.wanted(0.0) == []
    assert not one.complete
    one.agreed(3, digest_of(3))

    assert one.complete
    one.committed(3)
    assert one.complete


def test_a_state_is_not_whole_while_pieces_are_ahead_of_the_newcomer():
    one = download(since=3, pieces=PIECES, ahead=PIECES)
    one.wanted(0.0)
    for piece in range(PIECES):
        come(one, A, piece, 4)
    one.wanted(0.0)
    one.agreed(4, digest_of(4))
    one.hashes_came(A, 4, hashes_of(4))
    assert not one.complete

    one.committed(3)

    assert one.complete


def test_hashes_are_asked_first_of_who_gave_a_piece():
    one = download(since=3, pieces=PIECES, donors=(A, B))
    one.wanted(0.0)
    come(one, B, 1, 3)

    assert one.wanted(0.0)[0] == HashesWanted(B, 3)


def test_pieces_wait_for_their_proof_while_nobody_can_be_asked():
    one = download(since=3, pieces=2)
    one.wanted(0.0)
    come(one, A, 0, 3)
    come(one, A, 1, 3)
    one.donors(())
    assert one.wanted(0.0) == []

    one.donors((B,))

    assert one.wanted(0.0) == [HashesWanted(B, 3)]


def test_a_donor_that_gives_a_piece_has_its_whole_time_for_the_next():
    one = download(since=3, piece_s=10.0)
    one.wanted(0.0)
    one.piece_came(A, 0, 3, hash_of(true(0, 3)), 8.0)

    assert one.next_deadline_s() == 18.0


def test_a_donor_that_is_asked_for_more_has_no_more_time():
    one = download(since=3, piece_s=10.0)
    one.wanted(0.0)
    come(one, A, 0, 3)
    one.missed(3)

    assert one.wanted(8.0) == [PieceWanted(A, 0, 4)]
    assert one.next_deadline_s() == 10.0


def test_a_bad_piece_is_found_after_steps_have_passed_and_names_its_donor():
    one = download(since=3, pieces=PIECES, ahead=4, donors=(A, B))
    one.wanted(0.0)
    come(one, A, 0, 3, content="flipped")
    come(one, B, 1, 3)
    assert one.wanted(0.0)[0] == HashesWanted(A, 3)
    one.agreed(3, digest_of(3))
    one.committed(3)

    one.hashes_came(A, 3, hashes_of(3))

    (blame,) = one.blames()
    assert (blame.donor, blame.reason) == (A, "piece 0 of version 3 is not what it should be")
    wanted = one.wanted(0.0)
    assert {asked.donor for asked in wanted} == {B}
    assert PieceWanted(B, 0, 4) in wanted
    assert PieceWanted(B, 2, 4) in wanted
    assert one.blames() == []


def test_a_bad_piece_of_a_version_that_is_proved_is_never_placed():
    one = download(since=3, pieces=PIECES, ahead=PIECES)
    one.agreed(3, digest_of(3))
    one.wanted(0.0)
    come(one, A, 0, 3)
    one.wanted(0.0)
    one.hashes_came(A, 3, hashes_of(3))

    assert come(one, A, 1, 3, content="flipped") is None
    assert [blame.donor for blame in one.blames()] == [A]


def test_a_version_before_the_one_that_was_asked_for_is_blamed():
    one = download(since=3)
    one.wanted(0.0)

    assert come(one, A, 0, 2) is None

    (blame,) = one.blames()
    assert blame.reason == "piece 0 of version 2 where 3 was asked for"


def test_a_donor_that_is_too_far_ahead_is_asked_again_later():
    one = download(since=3, versions=8, donors=(A, B), ahead=1)
    one.wanted(0.0)
    assert come(one, B, 1, 11) == Placement(1, range(11, 3))

    assert come(one, A, 0, 12) is None

    assert one.blames() == []
    assert PieceWanted(B, 0, 3) in one.wanted(0.0)
    assert one.next_deadline_s() == RETRY_S


@pytest.mark.parametrize("hashes", [[b"x" * 32] * PIECES, hashes_of(3)[:-1]])
def test_hashes_without_the_agreed_root_are_blamed(hashes):
    one = download(since=3, pieces=PIECES, donors=(A, B))
    one.agreed(3, digest_of(3))
    one.wanted(0.0)
    come(one, A, 0, 3)
    one.wanted(0.0)

    one.hashes_came(A, 3, hashes)

    assert [blame.donor for blame in one.blames()] == [A]
    assert HashesWanted(B, 3) in one.wanted(0.0)


def test_a_giver_that_does_not_know_the_hashes_is_blamed_and_another_is_not():
    one = download(since=3, pieces=PIECES, donors=(A, B))
    one.wanted(0.0)
    come(one, A, 0, 3)
    one.wanted(0.0)
    one.hashes_failed(A, 3)
    assert [blame.donor for blame in one.blames()] == [A]

    assert HashesWanted(B, 3) in one.wanted(0.0)
    one.hashes_failed(B, 3)

    assert one.blames() == []
    assert PieceWanted(B, 0, 3) in [*one.wanted(0.0), PieceWanted(B, 0, 3)]


def test_answers_that_nobody_asked_for_change_nothing():
    one = download(since=3, donors=(A, B))
    one.wanted(0.0)

    assert come(one, B, 0, 3) is None
    assert come(one, A, 9, 3) is None
    one.hashes_came(A, 3, hashes_of(3))
    one.hashes_failed(A, 3)

    assert one.blames() == []
    assert come(one, A, 0, 3) == Placement(0, range(3, 3))


def test_a_donor_that_gives_nothing_is_left_for_a_while():
    one = download(since=3, piece_s=10.0)
    one.wanted(5.0)
    assert one.next_deadline_s() == 15.0
    one.on_deadline(14.0)
    assert one.wanted(14.0) == []

    one.on_deadline(15.0)
    assert one.wanted(15.0) == []
    assert one.next_deadline_s() == 15.0 + RETRY_S

    one.on_deadline(15.0 + RETRY_S)
    assert one.wanted(15.0 + RETRY_S) == [PieceWanted(A, 0, 3), PieceWanted(A, 1, 3)]


def test_a_donor_that_was_idle_has_its_whole_time_again():
    one = download(since=3, pieces=1, piece_s=10.0)
    one.wanted(0.0)
    come(one, A, 0, 3)
    one.missed(3)

    one.wanted(100.0)

    assert one.next_deadline_s() == 110.0


def test_a_download_without_donors_waits():
    one = download(donors=())

    assert one.wanted(0.0) == []
    assert one.next_deadline_s() is None
    one.donors((B,))
    assert {asked.donor for asked in one.wanted(0.0)} == {B}


def test_random_runs_are_the_same_for_the_same_seed():
    def told(seed):
        swarm = Swarm({A: "bad bytes", B: HONEST}, random.Random(seed))
        swarm.ask()
        swarm.settle()
        return swarm.placed, swarm.blamed

    assert told(4) == told(4)


def test_a_donor_that_is_no_member_any_more_and_gave_nothing_holds_nothing_up():
    """It may be dead, and a dial to it takes seconds to fail."""
    one = download(pieces=1, donors=(A, B))
    assert one.wanted(0.0) == [PieceWanted(A, 0, 3)]

    one.donors((B,))

    assert one.dropped() == [A]
    assert one.wanted(1.0) == [PieceWanted(B, 0, 3)]


@pytest.mark.parametrize("left", [(), (B,)])
def test_a_donor_that_gives_is_not_left_because_its_membership_ends(left: tuple[bytes, ...]):
    one = download(pieces=3, donors=(A,))
    one.wanted(0.0)
    if left:
        come(one, A, 0, 3)

    one.donors(left)

    assert one.dropped() == []


LEAF = hash_of(b"the stage's base")


def told(one, version=3, behind=(LEAF,)):
    """The hashes of a version are here, and then their agreed root."""
    hashes = (*hashes_of(version), *behind)
    one.wanted(0.0)
    for piece in range(one.pieces):
        come(one, A, piece, version)
    (asked,) = [each for each in one.wanted(1.0) if isinstance(each, HashesWanted)]
    one.hashes_came(asked.donor, version, hashes)
    one.agreed(version, root_of(hashes))


@pytest.mark.parametrize("base", [(LEAF,), None])
def test_the_leaf_of_a_base_is_the_last_hash(base) -> None:
    one = PieceDownload(PIECES, 3, DownloadLimits(ahead=PIECES), base=base)
    one.donors((A,))
    assert one.hash_count == PIECES + 1
    told(one)
    assert one.complete
    assert one.base == (LEAF,)
    assert not one.other_base


def test_who_holds_another_base_than_the_stage_learns_it_and_blames_nobody() -> None:
    one = PieceDownload(
        PIECES, 3, DownloadLimits(ahead=PIECES), base=(hash_of(b"another revision"),)
    )
    one.donors((A,))
    told(one)
    assert one.other_base
    assert not one.complete
    assert not one.blames()


def test_hashes_without_the_leaf_of_a_base_are_a_lie() -> None:
    one = PieceDownload(PIECES, 3, DownloadLimits(ahead=PIECES), base=(LEAF,))
    one.donors((A,))
    told(one, behind=())
    assert [blame.donor for blame in one.blames()] == [A]
