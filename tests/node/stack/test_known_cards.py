"""Cards that a node is told go into its book, and are read once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from node.harness import Town, identity_of, play

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.run.discovery import announce, find_run
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.node.stack.known_cards import KnownCards
from p2pswarm.settings.config import ServeConfig

THERE, LATER = Address("203.0.114.7", 4000), Address("203.0.114.8", 4000)


@asynccontextmanager
async def known() -> AsyncIterator[tuple[KnownCards, list[bytes]]]:
    async with Town().node() as stack:
        news: list[bytes] = []
        stack.cards.watch(news.append)
        yield stack.cards, news


def test_a_newer_card_is_news_and_an_old_one_is_none():
    async def story() -> None:
        peer = Identity.generate()
        old, new = Card.make(peer, 1, [THERE]), Card.make(peer, 2, [LATER])
        raw = peer.peer_id.raw
        async with known() as (cards, news):
            assert cards.of(raw) == b""
            for card in (old, old, new, old):
                cards.learn(raw, card.encode(), None)
            cards.learn(raw, b"", None)

            assert news == [raw, raw]
            assert cards.of(raw) == new.encode()

    play(story())


def test_a_card_of_another_peer_or_a_forged_one_is_a_breach():
    async def story() -> None:
        peer = Identity.generate()
        card = Card.make(peer, 1, [THERE]).encode()
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
            assert stack.cards.of(me) == stack.endpoint.card.encode()
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
                assert server.cards.of(raw) == trainer.endpoint.card.encode()
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
                trainer.reaching.announced.fire()
                await asyncio.sleep(2.0)

                await find_run(server, RunChoice(ServeConfig()), lambda _line: None)

                card = server.endpoint.cards.of(trainer.identity.peer_id)
                assert card is not None
                assert [each.contact for each in card.relays] == [relay]
            announcing.cancel()

    play(story())
