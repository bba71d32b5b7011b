"""A member's view of the run: it is whole, or it is not there."""

import pytest

from p2pswarm.errors import DialFailed
from p2pswarm.ids import Address, PeerId
from p2pswarm.swarm.messages.membership import MemberRecord, View
from p2pswarm.swarm.messages.types import VIEW_PART_MAX
from p2pswarm.swarm.view import Incarnation, MemberView, contact, incarnation_of, view_parts


def member(number: int, stage: int = 0, *, ready: bool = True) -> MemberRecord:
    return MemberRecord(number.to_bytes(32), f"10.0.0.1:{number}", stage, number, ready)


def test_a_view_shows_only_when_its_last_part_is_here():
    members = tuple(member(n) for n in range(VIEW_PART_MAX + 5))
    first, second = view_parts(1, members)
    view = MemberView()

    assert not view.receive(second)
    assert view.members == ()
    assert view.receive(first)
    assert view.members == members


def test_an_older_view_changes_nothing():
    view = MemberView()
    view.receive(View(5, 0, 1, (member(1),)))

    assert not view.receive(View(4, 0, 1, (member(2),)))
    assert not view.receive(View(5, 0, 1, (member(2),)))
    assert view.members == (member(1),)


def test_parts_of_an_overtaken_view_are_dropped():
    view = MemberView()
    view.receive(View(6, 0, 2, (member(1),)))
    view.receive(View(7, 1, 2, (member(3),)))

    assert not view.receive(View(6, 1, 2, (member(2),)))
    assert view.receive(View(7, 0, 2, (member(4),)))
    assert view.members == (member(3), member(4))


def test_only_the_ready_members_of_a_stage_are_offered():
    view = MemberView()
    view.receive(View(1, 0, 1, (member(1), member(2, ready=False), member(3, stage=1))))

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
    view.receive(View(1, 0, 1, (member(1),)))

    assert view.find(member(1).peer) == contact(member(1))
    assert view.find(b"y" * 32) is None


def test_the_donors_of_a_stage_are_its_ready_members_besides_ourselves():
    view = MemberView()
    everybody = (member(1), member(2), member(3, ready=False), member(4, stage=1))
    view.receive(View(1, 0, 1, everybody))

    assert view.donors(0, PeerId(member(2).peer)) == (contact(member(1)),)
    assert view.donors(0, None) == (contact(member(1)), contact(member(2)))
