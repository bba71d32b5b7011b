"""JoinRound through seeds: the first answer is enough, and when all are silent they are named."""

import pytest
from discovery.dht.harness import CARDS, CONFIG, HOME, OWN, a_table, contact, raw, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.messages import Found, Identified
from p2pswarm.discovery.dht.partition_healing import unknown_neighbours
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.discovery.dht.upkeep import (
    BootstrapReply,
    JoinRound,
    contacts_through,
    worth_a_lookup,
)

FIRST = Contact(None, Address("203.0.113.1", 1))
SECOND = Contact(None, Address("203.0.113.2", 2))


def test_the_first_answer_is_enough():
    joining = JoinRound([FIRST, SECOND])
    assert not joining.over

    joining.on_reply(SECOND, BootstrapReply.ANSWERED)

    assert joining.over
    assert joining.failure is None


def test_a_silent_seed_costs_nothing_while_others_may_answer():
    joining = JoinRound([FIRST, SECOND])

    joining.on_reply(FIRST, BootstrapReply.SILENT)
    assert not joining.over
    assert joining.failure is None
    joining.on_reply(SECOND, BootstrapReply.ANSWERED)

    assert joining.failure is None


def test_when_all_are_silent_they_are_named():
    joining = JoinRound([FIRST, SECOND])
    joining.on_reply(SECOND, BootstrapReply.SILENT)
    joining.on_reply(FIRST, BootstrapReply.SILENT)

    assert joining.over
    assert str(joining.failure).startswith("no answer from 203.0.113.2:2, 203.0.113.1:1: is a")


def test_to_be_ones_own_only_seed_is_no_failure():
    joining = JoinRound([FIRST])

    joining.on_reply(FIRST, BootstrapReply.OURSELVES)

    assert joining.over
    assert joining.failure is None


def test_a_seed_that_is_ourselves_is_not_named_among_the_silent():
    joining = JoinRound([FIRST, SECOND])
    joining.on_reply(FIRST, BootstrapReply.OURSELVES)
    assert not joining.over

    joining.on_reply(SECOND, BootstrapReply.SILENT)

    assert joining.over
    assert str(joining.failure).startswith("no answer from 203.0.113.2:2: ")


def test_a_greeting_tells_who_the_seed_is_and_whom_it_knows():
    reply = Identified(raw(7), told([(raw(5), HOME)]))

    met = contacts_through(FIRST, reply, UnverifiedContacts(CARDS))

    assert [each.peer and each.peer.raw for each in met] == [raw(7), raw(5)]
    assert [each.address for each in met] == [FIRST.address, contact(5).address]


@pytest.mark.parametrize(
    "reply",
    [Found(told([])), Identified(raw(7), told([(raw(5), "nowhere")]))],
    ids=["another answer", "no contacts"],
)
def test_a_wrong_greeting_is_a_breach(reply):
    with pytest.raises(BadMessage):
        contacts_through(FIRST, reply, UnverifiedContacts(CARDS))


def test_a_first_seed_is_worth_a_lookup_even_if_it_is_known():
    assert worth_a_lookup([contact(5)], a_table(5), joined_before=False)


def test_later_a_lookup_is_for_strangers_only():
    table = a_table(5)

    assert not worth_a_lookup([contact(5)], table, joined_before=True)
    assert worth_a_lookup([contact(5), contact(6)], table, joined_before=True)


def test_unknown_neighbours_are_those_that_are_as_close_as_ours():
    """Of a full neighbourhood the farthest says how close that is; of a small one all are close."""
    small = a_table(*(int.from_bytes(OWN) ^ n for n in (1, 2)))
    own = int.from_bytes(OWN)
    full = a_table(*(own ^ n for n in range(1, CONFIG.k + 1)))
    met = [contact(5), contact(own ^ 1), contact(own ^ 15), contact(own ^ 99), contact(own)]

    assert unknown_neighbours(met, small) == [contact(own ^ 15), contact(own ^ 99)]
    assert unknown_neighbours(met, full) == []
    full.drop((own ^ 15).to_bytes(32))
    assert unknown_neighbours(met, full) == [contact(own ^ 15), contact(own ^ 99)]
    full.on_contact(contact(own ^ 40), 0.0)
    assert unknown_neighbours(met, full) == [contact(own ^ 15)]
