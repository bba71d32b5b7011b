"""What an owner has signed, by name."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.access.harness import ANN, DAY_S, EVE, NOW_S, OWNER, RUN, bearer, personal

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import PeerId
from p2pswarm.run.access.access_list import check_list, sign_list
from p2pswarm.run.access.grant import serial_of
from p2pswarm.run.access.invitation_book import InvitationBook, book_from
from p2pswarm.run.access.messages import REVOKED_PEERS_MAX


def book_of(*names):
    book = InvitationBook()
    for number, name in enumerate(names):
        book.add(name, bearer(bytes([number]) * 16).grant)
    return book


def test_a_book_is_read_as_it_was_written():
    book = book_of("anna", "bert")
    book.add("carl", personal(ANN, uses=3).grant)
    book.revoke("anna")
    book.revoke(str(EVE))
    book.renew("bert", NOW_S + 30 * DAY_S)
    book.next_list(NOW_S)

    assert book_from(json.loads(json.dumps(asdict(book)))) == book


def test_a_name_is_used_once_and_one_is_found_for_who_gives_none():
    book = book_of("guest-1", "anna")

    assert book.free_name("") == "guest-2"
    assert book.free_name("bert") == "bert"
    with pytest.raises(Unusable, match="choose another --name"):
        book.free_name("anna")


def test_an_invitation_is_revoked_by_name_serial_or_peer():
    book = book_of("anna", "bert")
    serials = [bytes.fromhex(entry.serial) for entry in book.entries]

    book.revoke("anna")
    book.revoke(serials[1].hex())
    book.revoke(str(EVE))
    _, content = book.next_list(NOW_S)

    assert list(content.serials) == serials
    assert list(content.peers) == [EVE.raw]


def test_whom_nobody_knows_is_said_with_those_who_are_there():
    with pytest.raises(Unusable, match="'anna'"):
        book_of("anna").revoke("ana")
    with pytest.raises(Unusable, match="p2pswarm invitations"):
        book_of("anna").renew("ana", NOW_S + DAY_S)


def test_what_is_revoked_is_not_renewed():
    book = book_of("anna")
    book.revoke("anna")

    with pytest.raises(Unusable, match="invite anew"):
        book.renew("anna", NOW_S + DAY_S)


def test_a_renewal_is_in_the_list_until_it_is_over():
    book = book_of("anna")
    serial = bytes.fromhex(book.entries[0].serial)
    book.renew("anna", NOW_S + 30 * DAY_S)

    assert book.next_list(NOW_S + 20 * DAY_S)[1].extended == {serial: NOW_S + 30 * DAY_S}
    assert book.next_list(NOW_S + 31 * DAY_S)[1].extended == {}
    assert book.entries == []


@given(st.lists(st.integers(0, 2**33), min_size=1, max_size=20))
def test_versions_rise_whatever_the_clock_says(times):
    book, last = InvitationBook(), 0
    for now_s in times:
        version, _ = book.next_list(now_s)
        assert version > last
        last = version


def test_a_book_that_was_lost_goes_on_above_its_versions():
    lost = InvitationBook()
    old, _ = lost.next_list(NOW_S)

    assert InvitationBook().next_list(NOW_S + 60)[0] > old


def test_a_list_that_would_be_too_long_is_refused_and_the_longest_fits_a_message():
    book = InvitationBook(peers=[str(PeerId(n.to_bytes(32))) for n in range(REVOKED_PEERS_MAX)])
    access = sign_list(OWNER, RUN, *book.next_list(NOW_S))
    check_list(access, RUN, OWNER.public_key)

    book.revoke(str(EVE))
    with pytest.raises(Unusable, match="begin another run"):
        book.next_list(NOW_S)


def test_serials_of_two_invitations_differ():
    assert serial_of(bearer().grant) != serial_of(bearer(b"t" * 16).grant)
    assert serial_of(bearer().grant) != serial_of(bearer(days=8).grant)


@pytest.mark.parametrize(
    "fields", [{}, {"version": 1}, {"version": "x", "entries": [], "peers": []}, {"entries": [{}]}]
)
def test_another_file_is_no_book(fields):
    with pytest.raises((ValueError, KeyError, TypeError)):
        book_from(fields)
