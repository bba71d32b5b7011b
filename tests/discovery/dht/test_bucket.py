"""The k-bucket: who may stay, who waits, and who is checked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.routing_table import CHECK_EVERY_S, Bucket, Neighbour


def neighbour(number: int, heard_s: float = 0.0, net: str = "") -> Neighbour:
    raw = number.to_bytes(32)
    contact = Contact(PeerId(raw), Address(f"sim{number}", 1))
    return Neighbour(contact, raw, number, net, net, heard_s)


def raw(number: int) -> bytes:
    return number.to_bytes(32)


def bucket_for(capacity: int) -> Bucket:
    return Bucket(capacity, waiting=capacity, per_net=2)


def full_bucket() -> Bucket:
    """Contacts 1, 2 and 3 in a bucket for three, heard at 1 s, 2 s and 3 s."""
    bucket = bucket_for(3)
    for number in (1, 2, 3):
        assert bucket.on_newcomer(neighbour(number, heard_s=float(number))) is None
    return bucket


def ids(bucket: Bucket) -> list[int]:
    return [each.number for each in sorted(bucket.live, key=lambda each: (each.heard_s, each.raw))]


def test_newcomer_to_a_full_bucket_waits_for_the_silent_contact():
    """A live contact is never displaced: the one silent longest is to be checked."""
    bucket = full_bucket()

    to_check = bucket.on_newcomer(neighbour(9, heard_s=10.0))

    assert to_check == neighbour(1, heard_s=1.0)
    assert ids(bucket) == [1, 2, 3]


def test_contact_that_answers_its_check_keeps_its_place():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(9, heard_s=10.0))

    bucket.renew(neighbour(1, heard_s=10.2))

    assert ids(bucket) == [2, 3, 1]


def test_lost_contact_gives_its_place_to_the_freshest_newcomer():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(8, heard_s=10.0))
    bucket.on_newcomer(neighbour(9, heard_s=11.0))

    assert bucket.on_loss(raw(1)) == neighbour(9, heard_s=11.0)
    assert ids(bucket) == [2, 3, 9]


def test_only_the_freshest_newcomers_wait():
    """Memory is bounded: of ten newcomers, a bucket for three remembers three."""
    bucket = full_bucket()
    for number in range(10, 20):
        bucket.on_newcomer(neighbour(number, heard_s=float(number)))

    promoted = [bucket.on_loss(raw(number)) for number in (1, 2, 3, 19)]

    assert [each.number if each else None for each in promoted] == [19, 18, 17, None]


def test_newcomer_lost_while_it_waits_is_not_promoted():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(8, heard_s=10.0))
    bucket.on_newcomer(neighbour(9, heard_s=11.0))

    assert bucket.on_loss(raw(9)) is None
    assert bucket.on_loss(raw(1)) == neighbour(8, heard_s=10.0)


def test_newcomer_that_waited_and_comes_in_waits_no_more():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(9, heard_s=10.0))
    bucket.on_loss(raw(1))
    bucket.on_loss(raw(9))

    assert bucket.on_loss(raw(2)) is None
    assert ids(bucket) == [3]


def test_newcomer_knocking_again_finds_the_place_that_became_free():
    """One that waits, knocks again when there is room, is live and waits no longer."""
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(8, heard_s=10.0, net="a"))
    bucket.on_loss(raw(1), barred=["a"])

    bucket.on_newcomer(neighbour(8, heard_s=12.0, net="a"))

    assert ids(bucket) == [2, 3, 8]
    assert bucket.on_loss(raw(8)) is None


def test_flood_of_newcomers_asks_for_one_check_a_period():
    """1,000 newcomers within one period cost one ping, not 1,000."""
    bucket = full_bucket()
    start_s = 10.0
    times_s = [start_s + i * CHECK_EVERY_S / 1_000 for i in range(1_000)]

    checks = [bucket.on_newcomer(neighbour(100 + i, t)) for i, t in enumerate(times_s)]

    assert sum(check is not None for check in checks) == 1
    assert bucket.on_newcomer(neighbour(9, start_s + CHECK_EVERY_S)) is not None


def test_losing_a_stranger_changes_nothing():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(9, heard_s=10.0))

    assert bucket.on_loss(raw(77)) is None
    assert ids(bucket) == [1, 2, 3]


def test_one_network_gets_two_places_in_a_bucket():
    bucket = bucket_for(5)

    for number in range(4):
        bucket.on_newcomer(neighbour(number, net="203.0.113.0/24"))

    assert ids(bucket) == [0, 1]


def test_a_network_fills_no_waiting_places_beyond_its_share():
    bucket = full_bucket()
    for number in range(10, 14):
        bucket.on_newcomer(neighbour(number, float(number), net="203.0.113.0/24"))

    promoted = [bucket.on_loss(raw(number)) for number in (1, 2, 3)]

    assert [each.number if each else None for each in promoted] == [11, 10, None]


def test_barred_network_goes_on_waiting():
    bucket = full_bucket()
    bucket.on_newcomer(neighbour(8, 10.0, net="a"))
    bucket.on_newcomer(neighbour(9, 11.0, net="b"))

    assert bucket.on_loss(raw(1), barred=["b"]) == neighbour(8, 10.0, net="a")
    assert bucket.on_loss(raw(2), barred=["b"]) is None
    assert bucket.on_loss(raw(3)) == neighbour(9, 11.0, net="b")


def test_bucket_without_room_is_refused():
    with pytest.raises(ValueError, match="not 0"):
        bucket_for(0)


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 23), st.booleans(), st.sampled_from(["", "a", "b"]))),
)
def test_any_history_keeps_the_invariants(capacity, history):
    """However peers come and go: bounded, in order, and only `lost` ever removes."""
    bucket = bucket_for(capacity)
    for tick, (number, heard, net) in enumerate(history):
        before = ids(bucket)
        if heard and number in before:
            bucket.renew(neighbour(number, float(tick)))
            assert sorted(ids(bucket)) == sorted(before)
        elif heard:
            to_check = bucket.on_newcomer(neighbour(number, float(tick), net))
            assert to_check is None or to_check.number in before
            assert set(before) <= set(ids(bucket))
        else:
            bucket.on_loss(raw(number))
            assert number not in ids(bucket)

        assert len(bucket.live) == len(bucket) <= capacity
