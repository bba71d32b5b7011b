"""Who proves to be a trainer of an open run, between nodes in virtual time."""

from contextlib import AsyncExitStack

from node.harness import RUN, Town, play

from p2pswarm.node.run.closed_run import is_impostor, may_vote, proven_trainers, run_calls
from p2pswarm.run.manifest import RunIdentity


def test_a_peer_that_calls_itself_a_trainer_and_is_none_is_told_from_one_that_is_gone():
    async def story() -> None:
        town = Town()
        async with AsyncExitStack() as blocks:
            nodes = [await blocks.enter_async_context(town.node()) for _ in range(4)]
            server, founder, impostor, gone = nodes
            run = RunIdentity(RUN, bytes(32), bytes(16), founder.identity.peer_id.raw)
            calls = [
                await blocks.enter_async_context(run_calls(one, run, lambda _: None))
                for one in nodes
            ]
            town.internet.kill(gone.identity.peer_id, silent=False)
            contacts = [one.endpoint.contact for one in (founder, impostor, gone)]

            told = [await is_impostor(calls[0], one) for one in contacts]
            assert told == [False, True, False]
            assert await proven_trainers(calls[0], contacts) == contacts[:1]
            assert may_vote(calls[0], founder.identity.peer_id.raw)
            assert not may_vote(calls[1], server.identity.peer_id.raw)

    play(story())
