"""Trainers of one run find each other, one that has just come back too."""

from node.harness import Town, manifest_of, play, put

from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.discovery import offered
from p2pswarm.node.run.run_match import readable


def test_a_trainer_that_came_back_finds_the_others_though_it_holds_its_own_manifest_alone():
    async def story() -> None:
        town = Town()
        async with town.node(), town.node(), town.node() as first:
            await put(first, manifest_of(first))
            async with town.node() as again:
                await put(again, manifest_of(again))
                run = readable(encode(manifest_of(again))).run
                found = await offered(again, run)
                assert {one.peer for one in found} >= {first.identity.peer_id}

    play(story())
