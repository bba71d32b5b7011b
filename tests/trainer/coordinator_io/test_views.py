"""What members are told: each what it needs, only what changed, a few changes at a time."""

import random

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.member_view import MemberView
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.trainer.coordinator_io.views import CARDS_MEMBERS_MAX, REMEMBERED, Views
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports.actions import MemberChange

STAGES = 4


class Told:
    """The views of a run, and a member of one stage that takes them when it likes."""

    def __init__(self, views: Views, stage: int) -> None:
        self.views, self.stage, self.number = views, stage, 0
        self.view = MemberView()

    def take(self) -> list:
        self.number, parts = self.views.since(self.stage, self.number)
        for part in parts:
            self.view.receive(part)
        return parts


def change(number: int, stage: int = 0, *, ready: bool = False, gone: bool = False) -> MemberChange:
    record = MemberRecord(number.to_bytes(32), "h:1", stage, number, ready)
    return MemberChange(record, gone)


def published(views: Views, *changes: MemberChange) -> list[int]:
    views.change(changes)
    return views.publish(0, 0.0)


def test_a_member_knows_its_stage_and_the_ready_ones_beside_it():
    views = Views(STAGES)
    told = Told(views, 1)
    everybody = [change(10 * stage, stage) for stage in range(STAGES)]
    readied = [change(10 * stage + 1, stage, ready=True) for stage in range(STAGES)]

    assert published(views, *everybody) == [0, 1, 2, 3]
    published(views, *readied)
    told.take()

    assert [m.incarnation for m in told.view.members] == [1, 10, 11, 21]


def test_stages_of_which_one_prepares_for_the_other_know_each_other_as_neighbours_do():
    views = Views(STAGES)
    low, high = Told(views, 0), Told(views, 3)
    published(views, *(change(10 * s + 1, s, ready=True) for s in range(STAGES)))
    published(views, *(change(10 * s + 2, s) for s in range(STAGES)))

    views.beside([(0, 3)])
    assert views.publish(0, 0.0) == [0, 3]
    low.take(), high.take()
    assert [m.incarnation for m in low.view.members] == [1, 2, 11, 31]
    assert [m.incarnation for m in high.view.members] == [1, 21, 31, 32]

    published(views, change(32, 3, ready=True), change(31, 3, ready=True, gone=True))
    low.take()
    assert [m.incarnation for m in low.view.members] == [1, 2, 11, 32]

    views.beside([(1, 2)])  # neighbours anyway
    assert views.publish(0, 0.0) == [0, 3]
    low.take(), high.take()
    assert [m.incarnation for m in low.view.members] == [1, 2, 11]
    assert [m.incarnation for m in high.view.members] == [21, 32]
    views.beside([])
    assert views.publish(0, 0.0) == []


def test_a_stage_that_a_change_does_not_concern_has_no_new_view():
    views = Views(STAGES)

    assert published(views, change(1, 0)) == [0]
    assert published(views, change(1, 0, ready=True)) == [0, 1]
    assert published(views, change(1, 0, ready=True, gone=True)) == [0, 1]
    assert published(views, change(2, 0), change(2, 0, gone=True)) == []


def test_a_member_is_sent_the_whole_once_and_then_what_changed():
    views = Views(STAGES)
    told = Told(views, 0)
    published(views, change(1), change(2))
    first = told.take()
    published(views, change(1, ready=True), change(2, gone=True), change(3))
    second = told.take()

    assert [(v.since, len(v.joined), v.gone, v.ready) for v in first] == [(0, 2, (), ())]
    assert [(v.since, len(v.joined), v.gone, v.ready) for v in second] == [(1, 1, (2,), (1,))]
    assert told.take() == []


def test_a_slow_member_is_sent_one_difference_over_many_views():
    views = Views(STAGES)
    told = Told(views, 0)
    published(views, change(1))
    told.take()
    published(views, change(2), change(3))
    published(views, change(2, ready=True), change(3, gone=True), change(1, ready=True))
    published(views, change(1, ready=True, gone=True))

    (view,) = told.take()

    assert (view.since, view.number) == (1, 4)
    assert ([m.incarnation for m in view.joined], view.gone, view.ready) == ([2], (1,), ())
    assert [m.ready for m in told.view.members] == [True]


def test_one_that_missed_more_than_is_remembered_is_sent_the_whole():
    views = Views(STAGES, remembered=3)
    late, later = Told(views, 0), Told(views, 0)
    published(views, change(100))
    late.take()
    later.take()
    for number in range(3):
        published(views, change(number))
    differences = late.take()
    published(views, change(3))
    whole = later.take()

    assert [view.since for view in differences] == [1]
    assert [view.since for view in whole] == [0]
    assert len(later.view.members) == 5


def test_members_that_have_the_same_view_are_sent_the_same_message():
    views = Views(STAGES)
    one, other = Told(views, 0), Told(views, 0)
    published(views, change(1))

    assert one.take()[0] is other.take()[0]


def test_a_change_goes_out_at_once_and_the_next_after_the_pause():
    views = Views(STAGES, pause_s=0.5, pause_per_member_s=0.25)
    assert views.next_deadline_s() is None
    assert not views.due(0.0)
    views.change([change(1)])
    assert views.due(0.0)
    views.publish(2, 0.0)

    views.change([change(2)])

    assert views.next_deadline_s() == 1.0
    assert not views.due(0.99)
    assert views.due(1.0)
    views.publish(2, 1.0)
    assert views.next_deadline_s() is None
    assert not views.due(100.0)


def test_in_a_busy_minute_each_member_is_told_of_each_other_once():
    rng, views = random.Random(1), Views(10)
    members, told, records = Membership(10, group_max=1000), [], 0
    for number in range(200):
        member = members.admit(rng.randbytes(32), "10.0.0.1:4000", None, 0)
        members.make_ready(member.incarnation)
        views.change(members.changes())
        told.append(Told(views, member.stage))
        now_s = 0.06 * number
        if views.due(now_s):
            views.publish(number, now_s)
            records += sum(len(part.joined) for each in told for part in each.take())
    views.publish(200, 60.0)
    records += sum(len(part.joined) for each in told for part in each.take())

    assert records == 200 * 60 - 2 * 20 * 20  # the first and the last stage have one neighbour


def test_another_card_of_a_member_goes_to_those_that_know_it_and_nothing_else_does():
    members, views = Membership(STAGES), Views(STAGES)
    peers = [bytes([stage]) * 32 for stage in range(STAGES)]
    told = [Told(views, stage) for stage in range(STAGES)]
    for stage, peer in enumerate(peers):
        member = members.admit(peer, "h:1", stage, 0)
        assert members.on_card(peer, b"first")
        members.make_ready(member.incarnation)
    published(views, *members.changes())
    for each in told:
        assert {record.card for part in each.take() for record in part.joined} == {b"first"}

    assert members.on_card(peers[0], b"second")
    assert not members.on_card(peers[0], b"second")
    assert not members.on_card(b"s" * 32, b"a stranger's")
    assert published(views, *members.changes()) == [0, 1]

    for each in told[:2]:
        (part,) = each.take()
        assert [record.card for record in part.joined] == [b"second"]
        assert (part.gone, part.ready) == ((), ())
        assert each.view.record(peers[0]) == members.records()[0]


def test_a_large_run_is_told_cards_only_where_the_address_leads_nowhere_any_more():
    views, key = Views(STAGES), Identity.generate()
    told, at, other = Told(views, 0), Address("203.0.114.7", 1), Address("203.0.114.8", 1)
    members = Membership(STAGES)
    members.admit(key.peer_id.raw, str(at), 0, 0)

    def told_after(card: Card) -> bytes:
        members.on_card(key.peer_id.raw, card.data)
        views.change(members.changes())
        views.publish(CARDS_MEMBERS_MAX + 1, 0.0)
        (part,) = told.take()
        return part.joined[0].card

    moved = Card.make(key, 2, [other])
    assert told_after(Card.make(key, 1, [other, at])) == b""
    assert told_after(moved) == moved.data


@given(
    st.randoms(use_true_random=False),
    st.integers(1, 40),
    st.sampled_from([1, 2, REMEMBERED]),
)
def test_whoever_takes_a_view_knows_all_that_is_published(rng, rounds, remembered):
    """Members join, become ready, move, leave; some take each view and some hardly any."""
    members, views = Membership(STAGES), Views(STAGES, remembered=remembered)
    told = [Told(views, stage) for stage in range(STAGES) for _ in range(2)]
    for _ in range(rounds):
        for _ in range(rng.randrange(4)):
            peer = rng.randrange(12).to_bytes(32)
            present = members.of_peer(peer)
            if present is None:
                members.admit(peer, "h:1", rng.randrange(STAGES), 0)
            elif rng.random() < 0.4:
                members.on_card(peer, rng.randbytes(2))
            elif present.ready or rng.random() < 0.3:
                members.end(present.incarnation)
            else:
                members.make_ready(present.incarnation)
        views.change(members.changes())
        if rng.random() < 0.7:
            views.publish(0, 0.0)
            for each in rng.sample(told, rng.randrange(len(told))):
                each.take()
                assert list(each.view.members) == [
                    record
                    for record in members.records()
                    if record.stage == each.stage
                    or (record.ready and abs(record.stage - each.stage) == 1)
                ]


def test_members_of_both_ends_of_a_tied_model_know_all_of_each_other():
    views = Views(STAGES, (0, 3))
    low, middle, high = (Told(views, stage) for stage in (0, 1, 3))
    published(views, *(change(10 * s + 1, s, ready=True) for s in range(STAGES)))
    published(views, *(change(10 * s + 2, s) for s in range(STAGES)))
    for one in (low, middle, high):
        one.take()

    assert [m.incarnation for m in low.view.members] == [1, 2, 11, 31, 32]
    assert [m.incarnation for m in high.view.members] == [1, 2, 21, 31, 32]
    assert [m.incarnation for m in middle.view.members] == [1, 11, 12, 21]

    published(views, change(32, 3, ready=True))
    low.take()
    assert [m.incarnation for m in low.view.members if m.ready] == [1, 11, 31, 32]
    views.beside([(0, 3)])
    views.beside([])
    assert views.publish(0, 0.0) == []


def test_of_two_stages_that_are_both_ends_each_change_is_told_once():
    views = Views(2, (0, 1))
    low = Told(views, 0)
    published(views, change(1, 0), change(11, 1))

    assert [m.incarnation for m in low.take()[0].joined] == [1, 11]
