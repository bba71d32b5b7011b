"""Who looks for a run only once: a peer that answers late is not one that knows of none."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from node.harness import EPOCH_S, Town, identity_of, manifest_of, play, put

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.base.transient_errors import NobodyAnswers
from p2pswarm.commands.status.ask import NOBODY_SURE, offers_of
from p2pswarm.commands.status.texts import NO_RUN, nobody_knows
from p2pswarm.discovery.dht.messages import Store
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.guard.dial_budget import HOST_DIALS
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.discovery import ONCE_S
from p2pswarm.node.stack.stack import LOOK_AGAIN_S
from p2pswarm.run.manifest import RUNS_KEY, sign_manifest


@asynccontextmanager
async def deaf(town, stack, other, for_s: float):
    """Nothing comes to a node for so long; the others go on greeting their seeds."""
    world = town.internet.world
    host = world.hosts[stack.identity.peer_id.raw]
    paths = [(world.hosts[other.identity.peer_id.raw], host)]

    async def hear_again():
        await asyncio.sleep(for_s)
        world.mend(paths)

    world.cut(paths)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(hear_again())
        greeting = tasks.create_task(other.dht.maintain())
        yield
        greeting.cancel()


@pytest.mark.parametrize("for_s", [0.8, 2.0, 4.0])
def test_a_trainer_that_is_too_busy_to_answer_at_once_is_found(for_s):
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            async with deaf(town, trainer, asking, for_s):
                (offer,) = await offers_of(asking, "ours")

            assert offer.trainer.peer == trainer.identity.peer_id

    play(story())


def test_where_all_have_answered_it_is_said_at_once_that_there_is_no_run():
    async def story() -> None:
        town = Town()
        async with town.node(), town.node() as asking:
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(Unusable, match=NO_RUN):
                await offers_of(asking, "")

            assert asyncio.get_running_loop().time() - begun_s < 1.0

    play(story())


def test_sixty_manifests_of_one_machine_have_a_third_party_dialled_four_times(caplog):
    """Ids are free, and a manifest names any address. The run of an honest trainer is asked."""

    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            records = [hostile_record() for _ in range(60)]
            for begin in range(0, 60, 10):
                told = await asking.rpc.call(
                    trainer.endpoint.contact, Store(tuple(records[begin : begin + 10])), 5.0
                )
                assert not any(told.verdicts)

            offers = await offers_of(asking, "")

            assert trainer.identity.peer_id in [offer.trainer.peer for offer in offers]
            at_third = [one for one in offers if one.trainer.address == THIRD]
            assert len(at_third) == HOST_DIALS
            assert "56 trainers are not asked" in caplog.text

    play(story())


THIRD = Address("203.0.113.99", 80)


def hostile_record():
    """A manifest that names a third party."""
    identity = Identity.generate()
    manifest = sign_manifest(identity, identity_of(), THIRD, b"")
    expires_ms = int(1000 * (EPOCH_S + 50.0))
    return sign(identity, RUNS_KEY, identity.peer_id.raw, encode(manifest), 1, expires_ms)


def test_a_node_that_knows_nobody_cannot_know_that_there_is_no_run():
    """It may have been started again, and a second run is the last thing that anybody wants."""

    async def story() -> None:
        town = Town()
        async with town.node() as seed, town.node() as asking:
            at = str(seed.endpoint.contact.address)
            told = replace(asking, config=replace(asking.config, bootstrap=(at,)))
            with pytest.raises(Unusable) as refusal:
                await offers_of(told, "")
            assert str(refusal.value) == nobody_knows((at,))
            assert at in str(refusal.value)
            assert not str(refusal.value).startswith(NO_RUN)

            async with town.node() as other:
                await other.dht.put(bytes(32), b"", b"anything", 60.0)
                await asyncio.sleep(2 * LOOK_AGAIN_S)  # nobody is asked twice in a moment
                with pytest.raises(Unusable, match=NO_RUN):
                    await offers_of(told, "")

    play(story())


def test_where_nobody_answers_that_is_said():
    async def story() -> None:
        town = Town()
        async with town.node() as trainer, town.node() as asking:
            await put(trainer, manifest_of(trainer))
            async with deaf(town, trainer, asking, 3 * ONCE_S):
                with pytest.raises(NobodyAnswers, match=NOBODY_SURE):
                    await offers_of(asking, "")

    play(story())
