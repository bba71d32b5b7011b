"""Whom a server tells that it speaks another version: each trainer, and none of them often."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.node.run.version_notices import TELL_AGAIN_S, VersionNotices
from p2pswarm.run.manifest import UnreadableOffer


def offer(number: int) -> UnreadableOffer:
    trainer = Contact(PeerId(number.to_bytes(32)), Address("203.0.113.7", 4000))
    return UnreadableOffer(bytes(16), trainer, "another version")


def test_each_trainer_is_told_once_in_an_hour():
    notices = VersionNotices()
    both = [offer(1), offer(2)]

    assert notices.due([offer(1)], 5.0) == [offer(1).trainer]
    assert notices.due(both, 6.0) == [offer(2).trainer]
    assert notices.due(both, 4.9 + TELL_AGAIN_S) == []
    assert notices.due(both, 5.0 + TELL_AGAIN_S) == [offer(1).trainer]
    assert notices.due(both, 6.0 + TELL_AGAIN_S) == [offer(2).trainer]


def test_a_trainer_that_offers_another_run_or_moves_is_told_again():
    notices, first = VersionNotices(), offer(1)
    moved = Contact(first.trainer.peer, Address("203.0.113.9", 4000))
    notices.due([first], 0.0)

    assert notices.due([dataclasses.replace(first, run=b"n" * 16)], 1.0) == [first.trainer]
    assert notices.due([dataclasses.replace(first, trainer=moved)], 1.0) == [moved]


def test_a_flood_of_manifests_has_few_addresses_dialled_in_an_hour():
    notices = VersionNotices(manifests_max=3)

    told = [notices.due([offer(n), offer(n + 1)], n / 10) for n in range(100)]

    assert sum(map(len, told)) == 3
    assert len(notices.due([offer(n) for n in range(100)], 10.0 + TELL_AGAIN_S)) == 3


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 2000.0)), max_size=30))
def test_between_two_notices_to_one_trainer_lies_an_hour(looks):
    notices, now_s, told_s = VersionNotices(manifests_max=3), 0.0, {}

    for number, pause_s in looks:
        now_s += pause_s
        for trainer in notices.due([offer(number)], now_s):
            assert now_s >= told_s.get(trainer, -TELL_AGAIN_S) + TELL_AGAIN_S
            told_s[trainer] = now_s
        assert sum(now_s < at_s + TELL_AGAIN_S for at_s in told_s.values()) <= 3
