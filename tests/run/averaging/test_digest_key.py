"""The shares of a digest's key: who tells whom, and what a liar can do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.run.averaging.digest_key import KEY_BYTES, TELL_ALL_MAX, KeyShares


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
        assert self.shares[to].told(sender, said)

    def all_tell(self, order):
        for one in order:
            mine = self.shares[one]
            mine.reveal(share(one))
            observers = (self.observer,) if mine.tells_observers else ()
            for to in (*mine.tells, *observers):
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
        for to in mine.tells:
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

    assert not shares.told(group[0], b"".join(listed))
    assert not shares.whole
    assert shares.told(group[0], b"".join(share(p) for p in group))
    assert shares.whole


def test_a_list_that_comes_before_we_have_told_our_share_is_a_lie():
    group = group_of(TELL_ALL_MAX + 1)

    assert not KeyShares(group, group[3], 0).told(group[0], b"".join(share(p) for p in group))


@pytest.mark.parametrize("sender", [1, 3, 90])
def test_only_the_collector_may_list(sender):
    group, shares = large(3)

    with pytest.raises(BadMessage, match="no share"):
        shares.told(peer(sender + 1), b"".join(share(p) for p in group))


@pytest.mark.parametrize("size", [0, KEY_BYTES, TELL_ALL_MAX * KEY_BYTES])
def test_a_list_has_a_share_of_each_member(size):
    group, shares = large(3)

    assert not shares.told(group[0], bytes(size))


def test_a_list_comes_once():
    group, shares = large(3)
    listed = b"".join(share(p) for p in group)
    shares.told(group[0], listed)

    with pytest.raises(BadMessage, match="no share"):
        shares.told(group[0], listed)


def test_the_collector_takes_a_share_of_each_other_member_once():
    group, shares = large(0)
    shares.told(group[1], share(group[1]))

    for stranger in (group[0], group[1], peer(99)):
        with pytest.raises(BadMessage, match="no share"):
            shares.told(stranger, share(group[1]))
    with pytest.raises(BadMessage, match="16 bytes"):
        shares.told(group[2], b"")
