"""The directory of a run among many members: cuts, deaths, clocks, liars; all in virtual time."""

import asyncio
import random

import pytest
from core import core_of
from sim.seed import SEED
from worlds.gossip import RUN, GossipWorld, GossipWorldConfig

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address
from p2pswarm.discovery.gossip.directory_io import RunRole
from p2pswarm.discovery.gossip.messages import (
    AgedRecord,
    Compare,
    Compared,
    Deliver,
    Delivered,
)
from p2pswarm.discovery.gossip.record import Activity, RecordReader, RoleKind, make
from p2pswarm.net.cards.card import Card
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

HEAL_S = 30.0


def play(members: int, main, world: WorldConfig | None = None) -> str:
    """Let a run begin, and then do something to it."""

    async def whole() -> str:
        async with asyncio.TaskGroup() as tasks:
            made = GossipWorld(
                GossipWorldConfig(members=members, seed=SEED, world=world or WorldConfig()), tasks
            )
            for member in made.members:
                made.join(member, [made.members[0].rpc.contact])
            await made.until_one(60.0)
            await main(made)
            made.close()
        return made.net.digest

    return run(whole(), SEED)


@pytest.mark.parametrize(
    ("members", "apart_s"), core_of([(2, 60), (7, 600), (60, 60), (24, 600)], [(2, 60), (7, 600)])
)
def test_halves_that_were_cut_apart_are_one_directory_again_within_half_a_minute(members, apart_s):
    async def main(world: GossipWorld) -> None:
        half = world.members[::2]
        world.partition(half)
        await asyncio.sleep(apart_s)
        assert len(half[0].sees) == len(half)
        world.net.world.heal()
        assert await world.until_one(HEAL_S) < HEAL_S

    play(members, main)


def test_the_same_seed_gives_the_same_bytes():
    async def main(world: GossipWorld) -> None:
        world.partition(world.members[::2])
        await asyncio.sleep(60)
        world.net.world.heal()
        await asyncio.sleep(20)

    assert play(12, main) == play(12, main)


def test_a_hundred_who_come_at_once_through_one_see_each_other_within_half_a_minute():
    async def main(world: GossipWorld) -> None:
        assert asyncio.get_running_loop().time() < HEAL_S

    play(100, main)


def test_halves_that_never_met_become_one_by_one_hint():
    async def main(world: GossipWorld) -> None:
        others = [world.place() for _ in range(30)]
        for member in others:
            world.join(member, [others[0].rpc.contact])
        await asyncio.sleep(30)
        assert len(others[5].sees) == 30
        others[7].directory.enter_through([world.members[9].rpc.contact])
        assert await world.until_one(HEAL_S) < HEAL_S

    play(30, main)


def test_who_dies_without_a_word_is_gone_when_its_record_is_over():
    async def main(world: GossipWorld) -> None:
        world.kill(world.members[3])
        assert 10 < await world.until_one(90.0) < 90

    play(20, main)


def test_bad_networks_and_bad_clocks_delay_news_and_nothing_else():
    """A message of ten is lost and sent again; clocks are 5 minutes off, and one starts in 1970."""
    lossy = WorldConfig(loss=0.1, jitter=0.5, dial_rtts=2)

    async def main(world: GossipWorld) -> None:
        for off_s in (300.0, -300.0, -1.7e9):
            member = world.place(clock_off_s=off_s)
            world.join(member, [world.members[0].rpc.contact])
        await world.until_one(30.0)
        await asyncio.sleep(120)
        assert world.one
        old = world.members[-2]
        world.kill(old)
        again = world.place_again(old, clock_off_s=-1000.0)
        world.join(again, [world.members[4].rpc.contact])
        await world.until_one(30.0)

    play(20, main, lossy)


def test_a_member_that_is_stopped_for_longer_than_its_record_lives_comes_back():
    async def main(world: GossipWorld) -> None:
        stopped = world.members[4]
        world.net.freeze(stopped.rpc)
        await asyncio.sleep(100)
        assert stopped.rpc.host.peer.raw not in world.members[5].sees
        world.net.thaw(stopped.rpc)
        assert await world.until_one(HEAL_S) < HEAL_S

    play(20, main)


@pytest.mark.full
def test_a_liar_keeps_nobody_from_anybody_and_floods_no_memory():
    """It answers with nothing, keeps the dead young, brings hundreds of invented peers, and asks
    as often as it can."""

    async def main(world: GossipWorld) -> None:
        liar, reader = world.place(), RecordReader()
        world.members.remove(liar)
        held: dict[bytes, AgedRecord] = {}
        rng = random.Random(SEED)
        own = Card.make(liar.identity, 1, [liar.rpc.contact.address])
        standing = RunRole(RoleKind.SERVER, Activity.WORKING, 0)
        mine = make(liar.identity, RUN, 1, 600, own, (standing,))

        def answer(_, question: Compare) -> Compared:
            del question
            return Compared((AgedRecord(mine.signed, 0.0),), b"")

        def take(_, told: Deliver) -> Delivered:
            for aged in told.records:
                held[reader.read(aged.record).peer.raw] = AgedRecord(aged.record, 0.0)
            return Delivered()

        liar.rpc.serve_unary(Compare, answer)
        liar.rpc.serve_unary(Deliver, take)
        invented = [
            make(
                identity := world.place(address=Address(f"5.5.{n % 4}.{n}", 4000)).identity,
                RUN,
                1,
                600,
                Card.make(identity, 1, [Address(f"5.5.{n % 4}.{n}", 4000)]),
                (standing,),
            )
            for n in range(200)
        ]
        for _ in invented:
            world.members.pop()
        dead = world.members[3]
        world.kill(dead)
        whole = Compare(RUN, bytes(8), b"\xff" * 8, b"")
        refused = 0
        for step in range(240):
            victim = rng.choice(world.members)
            told = [AgedRecord(each.signed, 0.0) for each in rng.sample(invented, 30)]
            told += list(held.values())[:30]
            try:
                got = await liar.rpc.call(victim.rpc.contact, whole, 1.0)
                for aged in got.records:
                    record = reader.read(aged.record)
                    held.setdefault(record.peer.raw, AgedRecord(aged.record, 0.0))
                await liar.rpc.call(victim.rpc.contact, Deliver(RUN, tuple(told)), 1.0)
            except SwarmError:
                refused += 1
            await asyncio.sleep(0.5 if step % 20 else 2.0)

        honest = {member.rpc.host.peer.raw for member in world.members}
        for member in world.members:
            assert honest <= member.sees
            assert dead.rpc.host.peer.raw not in member.sees
            assert len(member.sees) <= len(honest) + 1 + 4 * 64

    play(20, main)


def test_what_a_member_sends_and_gets_is_as_the_page_says():
    """Fifty members: 5 KB a second each way."""
    seconds = 20

    async def main(world: GossipWorld) -> None:
        hosts = world.net.world.hosts.values()
        await asyncio.sleep(20)
        before = sum(host.sent_bytes for host in hosts)
        await asyncio.sleep(seconds)
        each = (sum(host.sent_bytes for host in hosts) - before) / seconds / len(world.members)
        assert 2_500 < each < 6_000

    play(50, main, WorldConfig(through_codec=True))
