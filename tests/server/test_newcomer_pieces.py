"""A newcomer's weights come in pieces from several members, whatever happens to them and to it."""

import asyncio
import dataclasses

import pytest
from server.harness import (
    ONE_STAGE,
    RUN_ID,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import PeerId
from p2pswarm.run.messages.state import AskHashes, FetchPieces, StateOffer

NEWCOMER = 5
SLOW_BYTES_PER_S = 60_000.0  # the state of 350 kB takes about 6 s


class Damaged:
    """What a donor gives, with one bit of each piece changed."""

    def __init__(self, replica):
        self._replica = replica
        self.given = 0

    def __getattr__(self, name):
        return getattr(self._replica, name)

    async def piece(self, piece):
        self.given += 1
        version, data = await self._replica.piece(piece)
        damaged = bytearray(data)
        damaged[7] ^= 1
        return version, memoryview(damaged)


async def three_donors(r, steps=1):
    await r.ready_servers(2, 3, 4)
    for _ in range(steps):
        await r.trainer.whole_step()


def sent_by_donors(r):
    return sum(r.world.world.hosts[peer(number).raw].sent_bytes for number in (2, 3, 4))


def state_bytes(r):
    return r.engines[peer(2).raw][-1].state_bytes


def here(r):
    return r.servers[peer(NEWCOMER).raw].weights_share


async def joined(r, bytes_per_s=SLOW_BYTES_PER_S):
    """A slow newcomer that has got some of its pieces."""
    r.serve(NEWCOMER)
    r.world.world.hosts[peer(NEWCOMER).raw].down_bytes_per_s = bytes_per_s
    await r.trainer.until(lambda: peer(NEWCOMER).raw in r.trainer.members)
    await asyncio.sleep(2.5)
    assert 0.2 < here(r) < 0.8


async def becomes_whole(r):
    await r.trainer.until_ready(4)
    assert here(r) == 1.0
    await r.trainer.whole_step()
    assert len(r.digests(0)) == 1
    assert_equal(weights_of(r), plain_after(r.trainer.version).flat.parameters)


def test_every_donor_gives_a_part_and_each_piece_comes_once():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r)
            before = sent_by_donors(r)
            await joined(r)
            await r.trainer.until_ready(4)
            fetched = (sent_by_donors(r) - before) / state_bytes(r)
            await becomes_whole(r)
            return fetched

    assert virtual(main) == pytest.approx(1.0, abs=0.1)


BF16 = dataclasses.replace(
    ONE_STAGE,
    model=dataclasses.replace(ONE_STAGE.model, dtype="float32"),
    precision="bf16",
    weight_storage="bf16",
)


def test_pieces_of_weights_in_bfloat16_follow_the_commits_that_they_come_in():
    """Rounded where they arrive, by the same chance as where they were."""

    async def main():
        async with swarm(BF16) as r:
            await three_donors(r)
            assert state_bytes(r) == 10 * r.engines[peer(2).raw][-1].weights._flat.length
            await joined(r, SLOW_BYTES_PER_S * 10 / 24)  # a value has 10 bytes instead of 24
            version = r.trainer.version
            await r.trainer.whole_step()
            assert here(r) < 1.0
            await r.trainer.until_ready(4)
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            assert r.trainer.version == version + 2

    virtual(main)


def test_a_newcomer_whose_session_was_lost_fetches_only_what_is_missing():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r)
            before = sent_by_donors(r)
            await joined(r)
            await r.cut_off(r.trainer.members[peer(NEWCOMER).raw])
            await r.trainer.until_ready(4)
            fetched = (sent_by_donors(r) - before) / state_bytes(r)
            await becomes_whole(r)
            return fetched, len(r.trainer.joins)

    fetched, joins = virtual(main)
    assert joins == 5
    assert fetched < 1.25  # what was on its way is sent again


def test_one_that_missed_a_step_meanwhile_fetches_what_cannot_follow():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r)
            await joined(r)
            r.world.world.partition([peer(NEWCOMER)])
            await r.trainer.members[peer(NEWCOMER).raw].over.wait()
            await r.trainer.whole_step()
            r.world.world.heal()
            await becomes_whole(r)

    virtual(main)


def test_deaths_of_donors_cost_only_what_was_on_its_way():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r)
            before = sent_by_donors(r)
            await joined(r)
            r.kill(2)
            r.kill(3)
            await r.trainer.until(lambda: r.trainer.members[peer(NEWCOMER).raw].ready)
            fetched = (sent_by_donors(r) - before) / state_bytes(r)
            await r.trainer.whole_step()
            assert len(r.digests(0)) == 1
            return fetched

    assert virtual(main) < 1.25


@pytest.mark.parametrize("steps_meanwhile", [0, 1])
def test_a_donor_that_damages_pieces_is_named_and_harms_nothing(steps_meanwhile, caplog):
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r)
            donor = r.servers[peer(3).raw]._donor
            donor._state = Damaged(donor._state)
            await joined(r)
            for _ in range(steps_meanwhile):
                await r.trainer.whole_step()
            await becomes_whole(r)
            return donor._state.given

    assert virtual(main) < 30
    assert f"{peer(3).raw.hex()[:12]} gave damaged weights" in caplog.text


def test_only_members_and_the_trainer_are_served():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await three_donors(r, steps=0)
            stranger = r.world.rpc(PeerId(b"s" * 32))
            return await refusal(r, stranger), await refusal(r, r.trainer.rpc)

    assert virtual(main) == ("only members of the run may ask this", "")


async def refusal(r, rpc):
    to = r.trainer.members[peer(2).raw].contact
    try:
        async with rpc.open_stream(to, FetchPieces(RUN_ID, 0), 10.0) as stream:
            await stream.send(AskHashes(99, 1))
            assert await stream.receive() == StateOffer(99, known=False)
            return ""
    except Busy as error:
        return str(error)
