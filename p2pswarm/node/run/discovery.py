"""Finding a run, and letting others find ours: a manifest in the DHT under a well-known key.

Errors:  those of the DHT are logged, and the next look is taken all the same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TypeVar

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.messages import Ping
from p2pswarm.net.cards.card import Card
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.net.guard.dial_budget import DIALS_MAX, DialBudget
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.run.run_choice import ASKED_MAX, RunChoice, in_own_order, preferred
from p2pswarm.node.run.run_match import end_key, readable
from p2pswarm.node.stack.stack import LOOK_AGAIN_S, NodeStack, Say
from p2pswarm.run.manifest import RUNS_KEY, RunIdentity, RunOffer, sign_manifest
from p2pswarm.run.messages.run import OtherVersion, RunOver
from p2pswarm.settings.config import RunConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

RECORD_S = 60.0  # a run whose trainer died is offered no longer than this
ANNOUNCE_EVERY_S = RECORD_S / 3  # so that two tries may fail
TRY_AGAIN_S = 1.0  # somebody waits for it
ANSWER_S = 2.0  # for a trainer to show that it lives: a dial and a round trip
END_S = 2.0  # to leave word of the end, when all else is done
END_RECORD_S = 3600.0  # as long as the DHT keeps anything
HOLDERS = 3  # one of them may have come just now, and one may be frozen
ONCE_S = 10.0  # for who looks once: a peer that is late twice is greeted again after 5
TELL_S = 2.0  # for a trainer of another version to answer; a run that is found waits no longer


async def announce(stack: NodeStack, run: RunIdentity) -> None:
    """Keep our run in the DHT, until cancelled; people are told when nobody takes it, and why.

    It is put there at once when our card has changed, because the old one may lead nowhere.

    It is put there again and again, because only who waits for a put learns how it went: a clock
    that jumps makes others refuse what they took before.
    """
    subkey, said = stack.identity.peer_id.raw, ""
    while True:
        card = stack.endpoint.card
        value = encode(
            sign_manifest(stack.identity, run, stack.endpoint.contact.address, card.data)
        )
        try:
            await stack.dht.long_values.put(RUNS_KEY, subkey, value, RECORD_S)
        except SwarmError as error:
            if str(error) != said:
                said = str(error)
                log.warning("the run could not be announced: %s", error)
            await asyncio.sleep(TRY_AGAIN_S)
        else:
            said = ""
            await _until_another_card(stack, card)


async def _until_another_card(stack: NodeStack, card: Card) -> None:
    """Return when our card is another, or after ANNOUNCE_EVERY_S."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANNOUNCE_EVERY_S):
            while stack.endpoint.card.signed == card.signed:
                await stack.reachability.announced.wait()


def learn_cards(stack: NodeStack, offers: Iterable[RunOffer]) -> None:
    """Take the cards of trainers from their manifests; one that is none is nobody's loss."""
    for offer in offers:
        assert offer.trainer.peer is not None, "the manifest was signed with its key"
        try:
            stack.cards.learn(offer.trainer.peer.raw, offer.card, None)
        except BadMessage as error:
            log.info("the manifest of %s: %s", offer.trainer.address, error)


async def find_run(stack: NodeStack, choice: RunChoice, say: Say) -> RunOffer:
    """Look the runs up until there is one to join; the DHT knows no other way to wait.

    Trainers of another version are told so meanwhile. Of several runs, one whose trainer answers
    is joined.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        while True:
            found = await manifests(stack)
            choice.retry(loop.time())
            offers = choice.fitting(found, clocks_differ=stack.dht.clocks_differ)
            for remark in choice.remarks():
                say(remark)
            for trainer in choice.to_be_told(loop.time()):
                tasks.create_task(_tell_version(stack.rpc, trainer, choice.version))
            if offers:
                learn_cards(stack, offers)
                several = [o.trainer for o in offers] if len(offers) > 1 else []
                offer = preferred(offers, await answering(stack.rpc, several))
                assert offer is not None, "there is an offer"
                return offer
            await asyncio.sleep(LOOK_AGAIN_S)


def affordable(
    rpc: Rpc, trainers: Iterable[Contact], known: Collection[Address] = (), most: int = DIALS_MAX
) -> list[Contact]:
    """Those of `trainers` that may be asked at one look: strangers wrote where they are.

    Who is linked costs no dial. Cards are learned before. `known`: places that need no bound.
    """
    budget = DialBudget(known, most)
    return [
        trainer
        for trainer in trainers
        if rpc.reach(trainer) is not ProvenAddress.CLAIMED or budget.take(_named(rpc, trainer))
    ]


def _named(rpc: Rpc, trainer: Contact) -> list[Address]:
    """All places where a trainer is said to be: it is dialled at several at once."""
    card = None if trainer.peer is None else rpc.cards.of(trainer.peer)
    if card is None:
        return [trainer.address]
    relays = [relay.at.address for relay in card.relays]
    return [trainer.address, *card.addresses, *relays]


async def answering(rpc: Rpc, trainers: Sequence[Contact]) -> list[Contact]:
    """Those of `trainers` that answer within `ANSWER_S`; `ASKED_MAX` strangers are asked."""
    async with asyncio.TaskGroup() as tasks:
        asked = [
            (trainer, tasks.create_task(_answers(rpc, trainer)))
            for trainer in affordable(rpc, trainers, most=ASKED_MAX)
        ]
    return [trainer for trainer, task in asked if task.result()]


async def _answers(rpc: Rpc, trainer: Contact) -> bool:
    try:
        await rpc.call(trainer, Ping(), ANSWER_S)
    except SwarmError as error:
        log.info("%s does not answer: %s", trainer.address, error)
        return False
    return True


async def manifests(stack: NodeStack, holders: int = 1) -> dict[bytes, bytes]:
    """The manifests in the DHT by their trainers' ids, in this node's own order.

    There are none if they could not be looked up.

    `holders`: how many answers are put together; this node's own, or the first, is enough for one.
    """
    found = await _values(stack, RUNS_KEY, "the runs", holders)
    some = in_own_order(stack.identity.peer_id.raw, found)
    return await stack.dht.long_values.whole(some)


async def looked_up(stack: NodeStack, look: Callable[[], Awaitable[Sequence[T]]]) -> Sequence[T]:
    """Return what `look` finds in the DHT, for who looks only once.

    A busy peer answers late, and it may be the only one that knows. So while nothing is found and
    not all have answered, it is looked for again, for `ONCE_S`.
    """
    loop = asyncio.get_running_loop()
    over_s = loop.time() + ONCE_S
    while True:
        found = await look()
        if found or not stack.dht.unsure or loop.time() >= over_s:
            return found
        await asyncio.sleep(LOOK_AGAIN_S)


async def announce_end(stack: NodeStack, run: RunIdentity, over: RunOver) -> None:
    """Leave word in the DHT that a run is over: nobody may be there when a trainer comes back."""
    subkey = stack.identity.peer_id.raw
    try:
        async with asyncio.timeout(END_S):
            key = end_key(run.config, run.corpus)
            await stack.dht.put(key, subkey, encode(over), END_RECORD_S, republish=False)
    except (SwarmError, TimeoutError) as error:
        log.info("nobody keeps word of the run's end: %s", error)


async def ends(stack: NodeStack, run: RunConfig, corpus: bytes) -> list[tuple[bytes, RunOver]]:
    """The ends of runs of these settings and this text, with the ids of who says so."""
    found = []
    values = await _values(stack, end_key(run, corpus), "the ends of runs")
    for subkey, value in sorted(values.items()):
        with contextlib.suppress(BadMessage):  # a stranger's
            if isinstance(over := decode(value), RunOver):
                found.append((subkey, over))
    return found


async def offered(stack: NodeStack, run: bytes) -> list[Contact]:
    """Return where the trainers of a run are, as far as they have announced it.

    What this node holds itself is not enough: a trainer that has just come back holds its own
    manifest alone, until the others are announced again.
    """
    found = await manifests(stack, HOLDERS)
    readable_ones = (readable(value) for value in found.values())
    offers = [offer for offer in readable_ones if offer is not None and offer.run == run]
    learn_cards(stack, offers)
    return affordable(stack.rpc, [offer.trainer for offer in offers])


async def _values(stack: NodeStack, key: bytes, what: str, holders: int = 1) -> dict[bytes, bytes]:
    """The values of a key by subkey; none if they could not be looked up."""
    try:
        records = await stack.dht.get(key, holders)
    except SwarmError as error:
        log.info("%s could not be looked up: %s", what, error)
        return {}
    return {subkey: record.value for subkey, record in records.items()}


async def _tell_version(rpc: Rpc, trainer: Contact, version: int) -> None:
    """Tell a trainer that we cannot join its run; that it does not listen is its own matter."""
    try:
        await rpc.call(trainer, OtherVersion(version), TELL_S)
    except SwarmError as error:
        log.info("%s was not told that we speak another version: %s", trainer.address, error)
