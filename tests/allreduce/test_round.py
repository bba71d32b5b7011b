"""One averaging from the view of one member."""

import pytest

from p2pswarm.allreduce.plan import ALIGN
from p2pswarm.allreduce.round import ExpectedPiece, Round, RoundId
from p2pswarm.errors import BadMessage
from p2pswarm.swarm.messages.averaging import Shard
from p2pswarm.swarm.messages.step import Reduce
from p2pswarm.tensors.meta import TensorMeta

A, B, C, WATCHER = (bytes([n]) * 32 for n in range(4))
ORDER = Reduce(b"r" * 16, 7, 2, 1, b"", (A, B, C), (WATCHER,))


def round_of(me):
    return Round(ORDER, me, 6 * ALIGN, piece=ALIGN)


def shard(index, *, gathered, length=ALIGN):
    return Shard(b"r" * 16, 7, 2, gathered, index, TensorMeta(1, (length,), 1, 4 * length))


def test_a_member_wants_parts_of_its_own_shard_and_all_others_reduced():
    one = round_of(B)

    assert one.mine == (2, 3)
    assert one.others == (A, C)
    assert one.adds
    parts = {ExpectedPiece(i, p, gathered=False) for i in (2, 3) for p in (A, C)}
    reduced = {ExpectedPiece(i, p, gathered=True) for i, p in ((0, A), (1, A), (4, C), (5, C))}
    assert set(one.wanted) == parts | reduced


def test_an_observer_wants_everything_reduced_and_adds_nothing():
    one = round_of(WATCHER)

    assert one.mine == ()
    assert not one.adds
    assert {(w.index, w.gathered) for w in one.wanted} == {(i, True) for i in range(6)}


def test_what_has_come_is_wanted_no_more():
    one = round_of(B)
    wanted, piece = one.expect(A, shard(2, gathered=False))
    one.came(wanted)
    one.came(wanted)

    assert piece is one.pieces[2]
    assert wanted not in one.wanted
    with pytest.raises(BadMessage, match="not wanted"):
        one.expect(A, shard(2, gathered=False))


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (A, shard(4, gathered=True)),
        (A, shard(0, gathered=False)),
        (WATCHER, shard(2, gathered=False)),
        (A, shard(99, gathered=True)),
        (B, shard(2, gathered=True)),
        (A, shard(2, gathered=False, length=ALIGN - 1)),
    ],
)
def test_pieces_of_others_or_of_another_size_are_refused(sender, message):
    with pytest.raises(BadMessage):
        round_of(B).expect(sender, message)


def test_a_later_generation_replaces_an_earlier_one():
    assert RoundId(7, 2) < RoundId(7, 3) < RoundId(8, 0)
    assert str(RoundId(7, 2)) == "step 7, generation 2"
