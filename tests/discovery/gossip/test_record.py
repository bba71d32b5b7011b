"""Tests of `discovery/gossip/record.py`."""

import dataclasses
import random

import pytest
from discovery.gossip.harness import ADDRESSES, PEERS, READER, RUN, SERVING, TRAINING, card, record
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.messages import (
    BODY_BYTES_MAX,
    FIGURES_MAX,
    LIFE_MOST_S,
    ROLES_MAX,
    VERSION_MAX,
    Figure,
    RecordBody,
    RunRole,
    SignedRecord,
)
from p2pswarm.discovery.gossip.record import (
    RENEW_LEAST_S,
    RENEWALS_PER_S,
    TAG,
    URGENT_LEAST_S,
    Activity,
    FigureKey,
    OwnRecord,
    RecordReader,
    RoleKind,
    contact_of,
    figures,
    make,
)
from p2pswarm.net.cards.card import Card
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.wire.message import decode, encode


def test_a_record_is_read_as_it_was_made():
    made = record("alice", 7, SERVING, TRAINING)

    found = RecordReader().read(made.signed)

    assert (found.peer, found.version, found.roles) == (made.peer, 7, (SERVING, TRAINING))
    assert found.card.addresses == (ADDRESSES["alice"],)
    assert found.entry == made.entry


@given(st.data())
def test_no_byte_of_a_record_can_be_changed(data: st.DataObject):
    signed = record("alice").signed
    whole = signed.body + signed.signature
    at = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
    forged = whole[:at] + bytes([other]) + whole[at + 1 :]

    with pytest.raises(BadMessage):
        READER.read(SignedRecord(forged[: len(signed.body)], forged[len(signed.body) :]))


def test_a_record_with_the_card_of_another_peer_is_not_its():
    body = encode(RecordBody(RUN, 1, 60, card("bob").signed, (SERVING,)))

    with pytest.raises(BadMessage, match="did not sign"):
        READER.read(SignedRecord(body, PEERS["alice"].sign(TAG, body)))
    with pytest.raises(ValueError, match="own peer's card"):
        make(PEERS["alice"], RUN, 1, 60, card("bob"), ())


def test_a_message_that_is_no_record_is_refused_though_it_is_signed():
    body = encode(card("alice").signed)

    with pytest.raises(BadMessage, match="SignedCard"):
        READER.read(SignedRecord(body, PEERS["alice"].sign(TAG, body)))


def test_a_reader_checks_a_record_again_only_after_it_was_forgotten():
    reader, made = RecordReader(remembered=1), record("alice")

    first = reader.read(made.signed)

    assert reader.read(made.signed) is first
    reader.read(record("bob").signed)
    assert reader.read(made.signed) is not first


def test_of_two_records_one_beats_the_other_and_never_both():
    old, new = record("alice", 1), record("alice", 2)
    other = record("alice", 2, TRAINING)

    assert new.beats(old)
    assert not old.beats(new)
    assert not new.beats(new)
    assert new.beats(other) != other.beats(new)
    assert new.entry != other.entry


def test_the_largest_card_and_all_figures_fit():
    hosts = [Address(f"{'a' * 60}.{'b' * 38}.example{at}.org", 4000) for at in range(7)]
    largest = Card.make(PEERS["alice"], 1, hosts)
    full = tuple(
        RunRole(role, 1, 0, tuple(Figure(255 - key, 0.5) for key in range(FIGURES_MAX)))
        for role in range(ROLES_MAX)
    )

    made = make(PEERS["alice"], RUN, 2**48 - 1, 600, largest, full)

    assert 1700 < len(made.signed.body) <= BODY_BYTES_MAX
    assert READER.read(made.signed).roles == full


def test_a_figure_and_a_role_are_there_once():
    with pytest.raises(ValueError, match="figure"):
        RunRole(1, 1, 0, (Figure(1, 0.0), Figure(1, 1.0)))
    with pytest.raises(ValueError, match="role"):
        RecordBody(RUN, 1, 60, card("alice").signed, (SERVING, SERVING))


def test_unknown_roles_states_and_figures_are_kept():
    strange = RunRole(200, 201, None, (Figure(202, 1.5),))

    assert READER.read(record("alice", 1, strange).signed).role(200) == strange


def test_figures_have_names():
    assert figures({FigureKey.RATE_PER_S: 2.5, FigureKey.VERSION: 7}) == (
        Figure(1, 7.0),
        Figure(4, 2.5),
    )


def test_a_peer_is_dialled_at_its_first_address_that_is_believed_or_through_its_relay():
    here = Address("10.9.9.9", 1)
    public, private = Address("5.5.5.1", 4000), Address("10.0.0.1", 4000)
    relay = Contact(PEERS["bob"].peer_id, Address("5.5.5.2", 4001))
    both = make(
        PEERS["alice"], RUN, 1, 60, Card.make(PEERS["alice"], 1, [private, public]), (SERVING,)
    )
    behind = make(
        PEERS["alice"],
        RUN,
        1,
        60,
        Card.make(PEERS["alice"], 1, [private], relays=[relay]),
        (SERVING,),
    )

    def where(made, least=Scope.PRIVATE, us=here):
        found = contact_of(made, least, us)
        return found and found.address

    assert where(both) == private
    assert where(both, Scope.PUBLIC) == public
    assert where(both, us=private) == public
    assert where(behind, Scope.PUBLIC) == relay.address.through(PEERS["alice"].peer_id)
    assert where(record("alice"), Scope.PUBLIC) is None


@given(st.binary(max_size=200))
def test_rubbish_is_no_record(data: bytes):
    signed = SignedRecord(data or b"x", bytes(64))

    with pytest.raises(BadMessage):
        READER.read(signed)


def test_the_bytes_are_those_that_were_signed():
    body = decode(record("alice", 3).signed.body)

    assert isinstance(body, RecordBody)
    assert dataclasses.astuple(body)[:3] == (RUN, 3, 60)


CARD = card("alice")


def own() -> OwnRecord:
    return OwnRecord(PEERS["alice"], RUN, random.Random(1))


def busy(queue_s: float, state: int = Activity.WORKING) -> RunRole:
    return RunRole(RoleKind.SERVER, state, 0, figures({FigureKey.QUEUE_S: queue_s}))


def test_who_has_nothing_to_say_says_nothing():
    assert own().next_deadline_s() == float("inf")


def test_a_standing_goes_out_at_once_and_again_before_its_life_is_over():
    mine = own()

    mine.set_role(SERVING)
    assert mine.next_deadline_s() < 100.0
    first = mine.sign(CARD, 10, 100.0, 5000)

    assert (first.version, first.roles) == (5000, (SERVING,))
    assert 100 + 0.9 * RENEW_LEAST_S <= mine.next_deadline_s() <= 100 + 1.1 * RENEW_LEAST_S
    assert first.lives_s >= 3 * RENEW_LEAST_S


def test_a_new_load_waits_and_a_new_state_does_not():
    mine = own()
    mine.set_role(busy(0.1))
    mine.sign(CARD, 10, 100.0, 5000)

    mine.set_role(busy(0.9))
    assert mine.next_deadline_s() > 104
    mine.set_role(busy(0.9, Activity.LEAVING))
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S


def test_a_new_card_goes_out_at_once():
    mine = own()
    mine.on_card(CARD)
    mine.set_role(SERVING)
    mine.sign(CARD, 10, 100.0, 5000)

    mine.on_card(CARD)
    assert mine.next_deadline_s() > 104
    mine.on_card(card("alice", seq=2))
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S


def test_a_node_with_two_roles_says_both_and_goes_on_with_one():
    mine = own()
    mine.set_role(SERVING)
    mine.set_role(TRAINING)
    assert mine.sign(CARD, 10, 100.0, 5000).roles == (SERVING, TRAINING)

    mine.withdraw(RoleKind.SERVER)
    mine.withdraw(RoleKind.SERVER)
    assert mine.next_deadline_s() == 100.0 + URGENT_LEAST_S
    assert mine.sign(CARD, 10, 101.0, 6000).roles == (TRAINING,)


def test_who_leaves_says_so_once_and_for_as_long_as_its_last_record_lives():
    mine = own()
    mine.set_role(SERVING)
    last = mine.sign(CARD, 4000, 100.0, 5000)

    mine.withdraw(RoleKind.SERVER)
    gone = mine.sign(CARD, 10, 101.0, 5001)

    assert gone.left
    assert gone.lives_s >= last.lives_s
    assert mine.next_deadline_s() == float("inf")


def test_a_clock_that_goes_back_takes_no_version_back():
    mine = own()
    mine.set_role(SERVING)

    assert mine.sign(CARD, 10, 100.0, 5000).version == 5000
    assert mine.sign(CARD, 10, 105.0, 1000).version == 5001


def test_who_was_here_before_with_a_better_clock_goes_on_above_that():
    mine = own()
    mine.set_role(SERVING)
    mine.sign(CARD, 10, 100.0, 1000)

    mine.on_version(900, 101.0)
    assert mine.next_deadline_s() > 104
    mine.on_version(9000, 101.0)

    assert mine.next_deadline_s() == 101.0
    assert mine.sign(CARD, 10, 101.0, 1100).version == 9001


def test_a_clock_at_the_end_of_time_makes_no_version_that_nobody_reads():
    mine = own()
    mine.set_role(SERVING)

    assert mine.sign(CARD, 10, 100.0, 1 << 60).version == VERSION_MAX
    assert mine.sign(CARD, 10, 105.0, 1 << 60).version == VERSION_MAX
    mine.on_version(VERSION_MAX, 106.0)


@given(st.integers(1, 4096))
def test_all_members_together_renew_no_more_than_one_can_follow(members):
    mine = own()
    mine.set_role(SERVING)
    made = mine.sign(CARD, members, 0.0, 1)
    period_s = mine.next_deadline_s()

    assert members / period_s <= 1.12 * RENEWALS_PER_S
    assert 2 * period_s < made.lives_s <= LIFE_MOST_S
