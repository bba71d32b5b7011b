"""A run whose manifest is longer than a record of the DHT is found like any other."""

import asyncio
import dataclasses
import json

import pytest
from node.harness import RUN, Town, identity_of, manifest_of, play, put

from p2pswarm.discovery.dht.long_values import LongValue, part_key, parts_of
from p2pswarm.discovery.dht.messages import VALUE_BYTES_MAX
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.run.discovery import announce, find_run, manifests
from p2pswarm.node.run.run_choice import RunChoice
from p2pswarm.run.manifest import RUNS_KEY
from p2pswarm.settings.config import CONFIG_BYTES_MAX
from p2pswarm.settings.node_config import ServeConfig


def run_with(config_bytes):
    """Our run with a config of so many bytes."""
    text = json.dumps({"factors": "1" * (config_bytes - 14)}, separators=(",", ":"))
    return dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, config=text))


@pytest.mark.parametrize("config_bytes", [1_000, 3_000, 9_000, CONFIG_BYTES_MAX])
def test_a_run_of_any_config_that_fits_is_found_and_is_the_same(config_bytes):
    run, said = run_with(config_bytes), []

    async def story():
        town = Town()
        async with town.node() as first, town.node() as trainer, town.node() as server:
            announcing = asyncio.create_task(announce(trainer, identity_of(run)))
            offer = await find_run(server, RunChoice(ServeConfig()), said.append)
            announcing.cancel()
            assert offer.config == run
            assert offer.trainer.peer == trainer.identity.peer_id
            (record,) = (await first.dht.get(RUNS_KEY)).values()
            assert len(record.value) <= VALUE_BYTES_MAX
            named = isinstance(decode(record.value), LongValue)
            assert named == (len(encode(manifest_of(trainer, run))) > VALUE_BYTES_MAX)

    play(story())
    assert all("there is no run yet" in each for each in said)


def test_strangers_who_name_parts_that_nobody_has_hide_no_run():
    async def story():
        town = Town()
        async with town.node() as trainer, town.node() as server:
            for _ in range(12):
                async with town.node() as stranger:
                    keys = tuple(stranger.identity.peer_id.raw[:31] + bytes([n]) for n in range(9))
                    own = stranger.identity.peer_id.raw
                    await stranger.dht.put(RUNS_KEY, own, encode(LongValue(keys)), 60.0)
            announcing = asyncio.create_task(announce(trainer, identity_of(run_with(9_000))))
            offer = await find_run(server, RunChoice(ServeConfig()), lambda _: None)
            announcing.cancel()
            assert offer.trainer.peer == trainer.identity.peer_id

    play(story())


def test_a_part_that_another_has_put_there_counts_only_if_it_is_that_part():
    async def story():
        town = Town()
        async with town.node() as stranger, town.node() as trainer, town.node() as server:
            run = run_with(9_000)
            manifest = manifest_of(trainer, run)
            for key in map(part_key, parts_of(encode(manifest))):
                own = stranger.identity.peer_id.raw
                await stranger.dht.put(key, own, b"something else", 60.0)
            await trainer.dht.long_values.put(
                RUNS_KEY, trainer.identity.peer_id.raw, encode(manifest), 60.0
            )
            await put(stranger, manifest_of(stranger))
            found = await manifests(server, 3)
            assert found == {
                trainer.identity.peer_id.raw: encode(manifest),
                stranger.identity.peer_id.raw: encode(manifest_of(stranger)),
            }

    play(story())
