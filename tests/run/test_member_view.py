"""A member's view of the run: it is whole, or it is not there."""

from dataclasses import replace

import pytest

from p2pswarm.base.errors import BadMessage, DialFailed
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.wire.frames import MESSAGE_BYTES_MAX
from p2pswarm.net.wire.message import encode
from p2pswarm.run.member_view import (
    PARTS_MAX,
    Incarnation,
    MemberView,
    contact,
    incarnation_of,
    view_parts,
)
from p2pswarm.run.messages.field_limits import CARD_BYTES_MAX, MEMBERS_MAX, VIEW_PART_MAX
from p2pswarm.run.messages.membership import MemberRecord, View


def member(number: int, stage: int = 0, *, ready: bool = True) -> MemberRecord:
    return MemberRecord(number.to_bytes(32), f"10.0.0.1:{number}", stage, number, ready)


def whole(number: int, *members: MemberRecord) -> View:
    (view,) = view_parts(number, members)
    return view


def change(number: int, since: int, *joined: MemberRecord, gone=(), ready=()) -> View:
    (view,) = view_parts(number, joined, since, gone=gone, ready=ready)
    return view


def taken(view: MemberView, parts: list[View]) -> None:
    for part in parts:
        view.receive(part)


def test_a_view_shows_only_when_its_last_part_is_here():
    members = tuple(member(n) for n in range(VIEW_PART_MAX + 5))
    first, second = view_parts(1, members)
    view = MemberView()

    assert not view.receive(first)
    assert view.members == ()
    assert view.receive(second)
    assert view.members == members


def test_the_largest_part_fits_a_message():
    many, card = VIEW_PART_MAX, bytes(CARD_BYTES_MAX)
    shortest = MemberRecord(bytes(32), "h" * 300, 255, 2**62, ready=True)
    longest = replace(shortest, address="\N{LATIN SMALL LETTER E WITH ACUTE}" * 300, card=card)
    numbers = (2**62,) * 10 * many

    for record in (shortest, longest):
        parts = view_parts(2**48, (record,) * many, 2**48, gone=numbers, ready=numbers)

        assert max(len(encode(part)) for part in parts) < MESSAGE_BYTES_MAX
        assert sum(len(part.joined) for part in parts) == many
        assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]


def test_all_members_of_the_largest_run_come_in_as_many_parts_as_are_taken():
    longest = MemberRecord(bytes(32), "h" * 300, 255, 2**62, True, bytes(CARD_BYTES_MAX))

    assert len(view_parts(1, (longest,) * MEMBERS_MAX)) <= PARTS_MAX


def test_an_older_view_changes_nothing():
    view = MemberView()
    view.receive(whole(5, member(1)))

    assert not view.receive(whole(4, member(2)))
    assert not view.receive(whole(5, member(2)))
    assert view.members == (member(1),)


def test_a_difference_takes_out_adds_and_makes_ready():
    view = MemberView()
    view.receive(whole(3, member(1), member(2), member(3, ready=False)))

    assert view.receive(change(4, 3, member(4), gone=(2,), ready=(3,)))

    assert view.members == (member(1), member(3), member(4))


def test_a_peer_that_joined_anew_is_one_member():
    view = MemberView()
    view.receive(whole(1, member(1)))
    again = replace(member(1), incarnation=9)

    view.receive(change(2, 1, again, gone=(1,)))

    assert view.members == (again,)


def test_what_a_difference_says_of_strangers_changes_nothing():
    view = MemberView()
    view.receive(whole(1, member(1)))

    assert view.receive(change(2, 1, gone=(7,), ready=(8,)))
    assert view.members == (member(1),)


def test_a_whole_view_forgets_what_was_before():
    view = MemberView()
    view.receive(whole(1, member(1)))

    assert view.receive(whole(70, member(2)))
    assert view.members == (member(2),)


def test_a_difference_from_another_view_is_an_error():
    view = MemberView()
    view.receive(whole(4, member(1)))

    with pytest.raises(BadMessage, match="view 7 follows view 5, and view 4 is here"):
        view.receive(change(7, 5, member(2)))
    assert view.members == (member(1),)


def test_the_parts_of_two_views_do_not_mix():
    view = MemberView()
    many = tuple(member(n) for n in range(VIEW_PART_MAX + 1))
    view.receive(view_parts(1, many)[0])

    with pytest.raises(BadMessage, match="view 2"):
        view.receive(view_parts(2, many)[1])


def test_a_view_without_end_is_refused():
    view = MemberView()
    part = view_parts(1, tuple(member(n) for n in range(VIEW_PART_MAX + 1)))[0]

    with pytest.raises(BadMessage, match="more than 4096 members"):
        taken(view, [part] * (PARTS_MAX + 1))


def test_a_view_of_too_many_members_is_refused():
    view = MemberView()

    with pytest.raises(BadMessage, match="more than 4096 members"):
        taken(view, view_parts(1, tuple(member(n) for n in range(MEMBERS_MAX + 1))))


def test_only_the_ready_members_of_a_stage_are_offered():
    view = MemberView()
    view.receive(whole(1, member(1), member(2, ready=False), member(3, stage=1)))

    assert view.ready(0) == (member(1),)
    assert view.record(member(2).peer) == member(2, ready=False)
    assert view.record(b"y" * 32) is None


def test_an_empty_view_is_one_part():
    view = MemberView()

    assert view.receive(view_parts(1, ())[0])
    assert view.members == ()


def test_a_record_names_an_incarnation_and_a_place_to_dial():
    assert incarnation_of(member(9)) == Incarnation(member(9).peer, 9)
    assert str(incarnation_of(member(9))) == "aaaaaaaa#9"
    assert contact(member(9)).address == Address("10.0.0.1", 9)
    with pytest.raises(DialFailed, match="HOST:PORT"):
        contact(MemberRecord(bytes(32), "nowhere", 0, 0, ready=True))


def test_a_member_is_found_where_the_view_says():
    view = MemberView()
    view.receive(whole(1, member(1)))

    assert view.find(member(1).peer) == contact(member(1))
    assert view.find(b"y" * 32) is None


def test_the_donors_of_a_stage_are_its_ready_members_besides_ourselves():
    view = MemberView()
    everybody = (member(1), member(2), member(3, ready=False), member(4, stage=1))
    view.receive(whole(1, *everybody))

    assert view.donors(0, PeerId(member(2).peer)) == (contact(member(1)),)
    assert view.donors(0, None) == (contact(member(1)), contact(member(2)))


def test_who_is_ready_is_as_the_newest_view_says():
    view = MemberView()
    view.receive(whole(1, member(1), member(2, ready=False), member(3, stage=1)))
    assert [m.incarnation for m in view.ready(0)] == [1]
    assert view.ready(2) == ()
    assert view.peers == [number.to_bytes(32) for number in (1, 2, 3)]

    view.receive(change(2, 1, member(4, stage=2), gone=(1,), ready=(2,)))

    assert [m.incarnation for m in view.ready(0)] == [2]
    assert [m.incarnation for m in view.ready(2)] == [4]
    assert view.peers == [number.to_bytes(32) for number in (2, 3, 4)]
