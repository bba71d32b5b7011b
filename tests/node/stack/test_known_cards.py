"""Tests of `node/stack/known_cards.py`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from node.harness import Town, identity_of, play

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.node.run.discovery import announce, find_run
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.stack.known_cards import (
    DIRECT,
    MAPPED,
    PUNCHED,
    RELAYED,
    KnownCards,
    kind_of_link,
)
from p2pswarm.settings.node_config import ServeConfig

ME, THEM = Identity.generate(), Identity.generate()
PUBLIC, HOME = Address("203.0.114.7", 4000), Address("192.168.1.5", 4000)
THERE, NEIGHBOUR = Address("203.0.114.9", 4000), Address("192.168.1.9", 4000)
AT_RELAY = THERE.through(PeerId(bytes(32)))


def card(direct=(), mapped=(), *, by: Identity = ME) -> Card:
    flags = CardFlags.NONE if direct or mapped else CardFlags.CLIENT
    return Card.make(by, 1, direct, mapped=mapped, flags=flags)


@pytest.mark.parametrize(
    ("kind", "remote", "ours", "told"),
    [
        (PathKind.DIRECT, THERE, card([PUBLIC]), DIRECT),
        (PathKind.PUNCHED, THERE, card([HOME]), PUNCHED),
        (PathKind.RELAYED, AT_RELAY, card([HOME]), RELAYED),
        (None, AT_RELAY, card([HOME]), RELAYED),
        (None, THERE, card([PUBLIC]), DIRECT),
        (None, THERE, card([HOME]), PUNCHED),
        (None, THERE, card(), PUNCHED),
        (None, THERE, card([HOME], [PUBLIC]), MAPPED),
        (None, NEIGHBOUR, card([HOME]), DIRECT),
    ],
)
def test_a_link_is_told_by_what_was_dialled_or_could_have_been(kind, remote, ours, told):
    assert kind_of_link(Path(kind, remote, None), ours, None) == told


def test_who_has_dialled_a_port_of_a_router_sees_it_in_the_card():
    path = Path(PathKind.DIRECT, THERE, None)

    assert kind_of_link(path, card([PUBLIC]), card(mapped=[THERE], by=THEM)) == MAPPED
    assert kind_of_link(path, card([PUBLIC]), card([THERE], by=THEM)) == DIRECT


KNOWN_CARDS_THERE, LATER = Address("203.0.114.7", 4000), Address("203.0.114.8", 4000)


@asynccontextmanager
async def known() -> AsyncIterator[tuple[KnownCards, list[bytes]]]:
    async with Town().node() as stack:
        news: list[bytes] = []
        stack.cards.watch(news.append)
        yield stack.cards, news


def test_a_newer_card_is_news_and_an_old_one_is_none():
    async def story() -> None:
        peer = Identity.generate()
        old, new = Card.make(peer, 1, [KNOWN_CARDS_THERE]), Card.make(peer, 2, [LATER])
        raw = peer.peer_id.raw
        async with known() as (cards, news):
            assert cards.of(raw) == b""
            for card in (old, old, new, old):
                cards.learn(raw, card.data, None)
            cards.learn(raw, b"", None)

            assert news == [raw, raw]
            assert cards.of(raw) == new.data

    play(story())


def test_a_card_of_another_peer_or_a_forged_one_is_a_breach():
    async def story() -> None:
        peer = Identity.generate()
        card = Card.make(peer, 1, [KNOWN_CARDS_THERE]).data
        async with known() as (cards, news):
            with pytest.raises(BadMessage, match="for another peer"):
                cards.learn(b"o" * 32, card, None)
            with pytest.raises(BadMessage):
                cards.learn(peer.peer_id.raw, card[:-1] + bytes([card[-1] ^ 1]), None)

            assert news == []

    play(story())


def test_our_own_card_is_known_and_nobody_tells_us_another():
    async def story() -> None:
        async with Town().node() as stack:
            me, news = stack.identity.peer_id.raw, []
            end = stack.cards.watch(news.append)
            assert stack.cards.of(me) == stack.endpoint.card.data
            stack.cards.learn(me, b"nonsense", None)
            assert news == []

            stack.cards.ours_has_changed()
            end()
            stack.cards.ours_has_changed()

            assert news == [me]

    play(story())


def test_a_server_that_finds_a_run_knows_the_card_of_its_trainer():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            async with town.node() as server:
                offer = await find_run(server, RunChoice(ServeConfig()), lambda _line: None)

                raw = trainer.identity.peer_id.raw
                assert server.cards.of(raw) == trainer.endpoint.card.data
                assert offer.trainer == trainer.endpoint.contact
            announcing.cancel()

    play(story())


def test_a_run_is_announced_anew_when_its_trainer_s_card_is_another():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, asyncio.TaskGroup() as tasks:
            announcing = tasks.create_task(announce(trainer, identity_of()))
            async with town.node() as server:
                await find_run(server, RunChoice(ServeConfig()), lambda _line: None)
                relay = Contact(server.identity.peer_id, LATER)
                trainer.endpoint.announce([], relays=[relay])
                trainer.reachability.announced.fire()
                await asyncio.sleep(2.0)

                await find_run(server, RunChoice(ServeConfig()), lambda _line: None)

                card = server.endpoint.cards.of(trainer.identity.peer_id)
                assert card is not None
                assert [each.contact for each in card.relays] == [relay]
            announcing.cancel()

    play(story())
