"""Tests of `run/averaging/round.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, Busy
from p2pswarm.base.ids import PeerId
from p2pswarm.run.averaging.round import (
    KEY_BYTES,
    TELL_ALL_MAX,
    ExpectedPiece,
    KeyShares,
    Round,
    RoundId,
)
from p2pswarm.run.averaging.shards import ALIGN
from p2pswarm.run.messages.step import Reduce, Shard
from p2pswarm.tensors.codecs.meta import TensorMeta


def peer(number):
    return number.to_bytes(32)


def share(one):
    return one[-KEY_BYTES:]


def group_of(members):
    return tuple(peer(n + 1) for n in range(members))


class Told:
    """All members and an observer, who tell each other what they have to."""

    def __init__(self, members, turn=0):
        self.group, self.observer = group_of(members), peer(0)
        self.shares = {p: KeyShares(self.group, p, turn) for p in (*self.group, self.observer)}
        self.messages = 0

    def tell(self, sender, to, said):
        self.messages += 1
        assert self.shares[to].on_shares(sender, said)

    def all_tell(self, order):
        for one in order:
            mine = self.shares[one]
            mine.reveal(share(one))
            for to in mine.receivers((self.observer,)):
                self.tell(one, to, share(one))
        for one in order:
            if self.shares[one].collects:
                for to in self.shares:
                    if to != one:
                        self.tell(one, to, self.shares[one].listed)


@given(st.integers(1, 40), st.integers(0, 2**40), st.randoms())
def test_all_learn_the_same_key_in_any_order_and_nobody_knows_it_before_all_told(
    members, turn, random
):
    told = Told(members, turn)
    order = list(told.group)
    random.shuffle(order)
    for one in order[:-1]:
        mine = told.shares[one]
        mine.reveal(share(one))
        for to in mine.receivers():
            told.tell(one, to, share(one))
        assert not any(shares.whole for shares in told.shares.values())

    told = Told(members, turn)
    told.all_tell(order)
    assert all(shares.whole for shares in told.shares.values())
    assert len({shares.key for shares in told.shares.values()}) == 1


def test_a_large_group_tells_each_other_in_two_messages_a_member():
    told = Told(100)
    told.all_tell(told.group)

    assert told.messages == 2 * 99 + 1


def test_another_one_collects_in_the_next_averaging():
    group = group_of(TELL_ALL_MAX + 1)
    collectors = [
        [p for p in group if KeyShares(group, p, turn).collects] for turn in range(len(group))
    ]

    assert collectors == [[p] for p in group]


def large(place, turn=0):
    group = group_of(TELL_ALL_MAX + 1)
    shares = KeyShares(group, group[place], turn)
    shares.reveal(share(group[place]))
    return group, shares


def test_a_list_without_our_own_share_is_found_out():
    group, shares = large(3)
    listed = [share(p) for p in group]
    listed[3] = bytes(KEY_BYTES)

    assert not shares.on_shares(group[0], b"".join(listed))
    assert not shares.whole
    assert shares.on_shares(group[0], b"".join(share(p) for p in group))
    assert shares.whole


def test_a_list_that_comes_before_we_have_told_our_share_is_a_lie():
    group = group_of(TELL_ALL_MAX + 1)

    assert not KeyShares(group, group[3], 0).on_shares(group[0], b"".join(share(p) for p in group))


@pytest.mark.parametrize("sender", [1, 3, 90])
def test_only_the_collector_may_list(sender):
    group, shares = large(3)

    with pytest.raises(BadMessage, match="no share"):
        shares.on_shares(peer(sender + 1), b"".join(share(p) for p in group))


@pytest.mark.parametrize("size", [0, KEY_BYTES, TELL_ALL_MAX * KEY_BYTES])
def test_a_list_has_a_share_of_each_member(size):
    group, shares = large(3)

    assert not shares.on_shares(group[0], bytes(size))


def test_a_list_comes_once():
    group, shares = large(3)
    listed = b"".join(share(p) for p in group)
    shares.on_shares(group[0], listed)

    with pytest.raises(BadMessage, match="no share"):
        shares.on_shares(group[0], listed)


def test_the_collector_takes_a_share_of_each_other_member_once():
    group, shares = large(0)
    shares.on_shares(group[1], share(group[1]))

    for stranger in (group[0], group[1], peer(99)):
        with pytest.raises(BadMessage, match="no share"):
            shares.on_shares(stranger, share(group[1]))
    with pytest.raises(BadMessage, match="16 bytes"):
        shares.on_shares(group[2], b"")


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
    assert set(one._missing) == parts | reduced


def test_an_observer_wants_everything_reduced_and_adds_nothing():
    one = round_of(WATCHER)

    assert one.mine == ()
    assert not one.adds
    assert {(w.index, w.gathered) for w in tuple(one._missing)} == {(i, True) for i in range(6)}


def test_what_has_come_is_wanted_no_more():
    one = round_of(B)
    wanted, piece = one.expect(A, shard(2, gathered=False))
    one.on_piece(wanted)

    assert piece is one.pieces[2]
    assert wanted not in tuple(one._missing)
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


def part(index, sender):
    return sender, shard(index, gathered=False)


def finished(me):
    """A round with every piece in place and every piece of ours reduced."""
    one = round_of(me)
    for wanted in tuple(one._missing):
        one.expect(wanted.sender, shard(wanted.index, gathered=wanted.gathered))
        one.on_piece(wanted)
    for index in one.mine:
        one.reduced(index)
    return one


def test_a_piece_is_ready_when_all_its_parts_are_here_and_complete_when_it_is_reduced():
    one = round_of(B)
    for sender in (A, C):
        assert not one.has_parts(2)
        wanted, _ = one.expect(*part(2, sender))
        one.on_piece(wanted)

    assert one.has_parts(2)
    assert not one.is_reduced(2)
    one.reduced(2)
    assert one.is_reduced(2)


def test_a_piece_without_memory_may_be_offered_again():
    one = round_of(B)
    wanted, _ = one.expect(*part(2, A))
    one.stopped(wanted)

    assert one.expect(*part(2, A))[0] == wanted
    assert one.failure is None


def test_half_a_reduced_piece_ends_the_averaging_and_names_its_sender():
    one = round_of(B)
    wanted, _ = one.expect(A, shard(0, gathered=True))
    one.granted(wanted)
    with pytest.raises(BadMessage, match="not wanted"):
        one.expect(A, shard(0, gathered=True))
    one.stopped(wanted)

    assert PeerId(A).short in str(one.failure)


def test_half_a_part_may_come_again_over_another_link():
    one = round_of(B)
    first, _ = one.expect(*part(2, A))
    one.granted(first)
    second, _ = one.expect(*part(2, A))
    one.stopped(first)
    one.granted(first)

    assert one.failure is None
    assert one.on_piece(second)
    assert not one.on_piece(first)
    one.stopped(second)
    with pytest.raises(BadMessage, match="not wanted"):
        one.expect(*part(2, A))


def test_what_has_come_whole_may_end_as_it_likes():
    one = round_of(B)
    wanted, _ = one.expect(*part(2, A))
    one.granted(wanted)
    one.on_piece(wanted)
    one.stopped(wanted)

    assert one.failure is None


def test_a_sender_has_so_many_parts_here_that_are_not_added_and_no_more():
    one = Round(ORDER, B, 3 * 18 * ALIGN, piece=ALIGN)
    first, *more = one.mine
    ahead = one.parts_ahead
    assert len(more) >= ahead
    for index in one.mine[:ahead]:
        one.on_piece(one.expect(*part(index, A))[0])
    with pytest.raises(Busy):
        one.expect(*part(one.mine[ahead], A))

    one.on_piece(one.expect(*part(first, C))[0])
    one.reduced(first)
    offered, _ = one.expect(*part(one.mine[ahead], A))
    one.stopped(offered)
    assert one.expect(*part(one.mine[ahead], A))[0] == offered


def test_the_key_is_made_of_a_share_of_every_member_and_the_same_for_all():
    rounds = {me: finished(me) for me in (A, B, C, WATCHER)}
    shares = {me: rounds[me].reveal(me) for me in (A, B, C)}
    for me, one in rounds.items():
        assert not one.key_shares.whole
        for sender, share in shares.items():
            if sender != me:
                one.revealed(sender, share)

    assert all(one.key_shares.whole for one in rounds.values())
    assert len({one.key_shares.key for one in rounds.values()}) == 1
    other = finished(A)
    other.reveal(b"another secret")
    other.revealed(B, shares[B])
    other.revealed(C, shares[C])
    assert other.key_shares.key != rounds[A].key_shares.key


def test_a_share_depends_on_who_when_and_a_secret():
    later = Reduce(b"r" * 16, 7, 3, 1, b"", (A,), ())
    alone = Round(later, A, 0)
    shares = {
        finished(A).reveal(b"x").tensor.inline,
        finished(B).reveal(b"x").tensor.inline,
        finished(A).reveal(b"y").tensor.inline,
        alone.reveal(b"x").tensor.inline,
    }

    assert len(shares) == 4
    assert finished(A).reveal(b"x").tensor.inline in shares


def test_no_share_is_told_while_a_piece_is_missing():
    with pytest.raises(AssertionError, match="could still choose"):
        round_of(A).reveal(b"")


@pytest.mark.parametrize("sender", [WATCHER, A, b"x" * 32])
def test_a_share_of_somebody_who_has_none_is_refused(sender):
    share = finished(B).reveal(b"")

    with pytest.raises(BadMessage, match="no share"):
        round_of(A).revealed(sender, share)


def test_a_share_comes_once_and_has_16_bytes():
    one, share = round_of(A), finished(B).reveal(b"")
    with pytest.raises(BadMessage, match="16 bytes"):
        one.revealed(B, shard(6, gathered=True))
    one.revealed(B, share)

    with pytest.raises(BadMessage, match="no share"):
        one.revealed(B, share)


def test_an_order_divides_the_pieces_by_its_shares():
    order = Reduce(b"r" * 16, 7, 2, 1, b"", (A, B, C), (), (1, 0, 5))

    assert Round(order, A, 6 * ALIGN, piece=ALIGN).mine == (0,)
    assert Round(order, B, 6 * ALIGN, piece=ALIGN).mine == ()
    assert Round(order, C, 6 * ALIGN, piece=ALIGN).mine == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("shares", [(1,), (0, 0, 0), (1, 1, 1, 1)])
def test_an_order_whose_shares_are_not_those_of_its_group_is_refused(shares):
    with pytest.raises(ValueError, match="shares"):
        Reduce(b"r" * 16, 7, 2, 1, b"", (A, B, C), (), shares)


def test_the_share_of_a_key_in_one_averaging_tells_nothing_of_the_other_of_the_same_order():
    """The first is told while pieces of the second are on their way."""
    orders = Round(ORDER, WATCHER, 0), Round(ORDER, WATCHER, 0, tied=True)
    rest, tied = (one.reveal(b"secret") for one in orders)

    assert rest.tensor.inline != tied.tensor.inline
    assert (rest.tied, tied.tied) == (False, True)


def test_pieces_end_at_a_cut():
    one = Round(ORDER, B, 6 * ALIGN, piece=ALIGN, cut=ALIGN + 1)

    assert [p.span.length for p in one.pieces[:4]] == [ALIGN, 1, ALIGN - 1, ALIGN]
    assert one.mine == (3, 4)
