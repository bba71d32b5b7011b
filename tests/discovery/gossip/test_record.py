"""Records are their peers' own; of two the newer counts."""

import dataclasses

import pytest
from discovery.gossip.harness import ADDRESSES, PEERS, READER, RUN, SERVING, TRAINING, card, record
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.messages import (
    BODY_BYTES_MAX,
    FIGURES_MAX,
    STANDINGS_MAX,
    Figure,
    RecordBody,
    RunStanding,
    SignedRecord,
)
from p2pswarm.discovery.gossip.record import TAG, FigureKey, RecordReader, contact_of, figures, make
from p2pswarm.net.cards.card import Card
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.wire.message import decode, encode


def test_a_record_is_read_as_it_was_made():
    made = record("alice", 7, SERVING, TRAINING)

    found = RecordReader().read(made.signed)

    assert (found.peer, found.version, found.standings) == (made.peer, 7, (SERVING, TRAINING))
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
        RunStanding(role, 1, 0, tuple(Figure(255 - key, 0.5) for key in range(FIGURES_MAX)))
        for role in range(STANDINGS_MAX)
    )

    made = make(PEERS["alice"], RUN, 2**48 - 1, 600, largest, full)

    assert 1700 < len(made.signed.body) <= BODY_BYTES_MAX
    assert READER.read(made.signed).standings == full


def test_a_figure_and_a_role_are_there_once():
    with pytest.raises(ValueError, match="figure"):
        RunStanding(1, 1, 0, (Figure(1, 0.0), Figure(1, 1.0)))
    with pytest.raises(ValueError, match="role"):
        RecordBody(RUN, 1, 60, card("alice").signed, (SERVING, SERVING))


def test_unknown_roles_states_and_figures_are_kept():
    strange = RunStanding(200, 201, None, (Figure(202, 1.5),))

    assert READER.read(record("alice", 1, strange).signed).standing(200) == strange


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
