"""The digest of a version is computed beside the microbatches of its step, and told when known."""

import asyncio
from dataclasses import replace

import pytest
from server.gates import Gate
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

from p2pswarm.base.errors import Refused
from p2pswarm.run.messages.membership import Ready
from p2pswarm.run.messages.step import Commit, Committed
from p2pswarm.server.version_digest import FRESH_S
from p2pswarm.tensors.state_tree import root_of

LONG_S = 5.0
"""Everything else is done by then."""


async def one_server(r):
    """A server whose digests wait at a gate; its member and the gate."""
    gate = Gate()
    (server,) = await r.ready_servers(2, background=gate)
    return server, r.trainer.members[peer(2).raw], gate


def test_a_step_is_computed_while_the_digest_is_and_is_reduced_when_it_is_known():
    async def main():
        async with swarm(ONE_STAGE) as r:
            server, member, gate = await one_server(r)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            gate.open.clear()
            answers = await r.trainer.commit()
            assert {one: replace(each, seconds=None) for one, each in answers.items()} == {
                peer(2).raw: Committed(1, applied=True)
            }
            assert server._replica.digest == b""

            await r.trainer.step_pushes()
            reducing = asyncio.ensure_future(r.trainer.reduce())
            await asyncio.sleep(LONG_S)
            assert not reducing.done()
            assert [n for n in member.notes if n == Ready(1, server._replica.digest)] == []
            gate.open.set()

            (reduced,) = (await reducing).values()
            await r.trainer.until(lambda: Ready(1, reduced.state) in member.notes)
            engine_digest = root_of(r.engines[peer(2).raw][-1].weights.hashes())
            await r.trainer.commit()
            return reduced.state, engine_digest, server.version, weights_of(r)

    told, digest, version, weights = virtual(main)
    assert told == digest != b""
    assert version == 2
    assert_equal(weights, plain_after(2).flat.parameters)


def test_every_version_is_told_once():
    async def main():
        async with swarm(ONE_STAGE) as r:
            _, member, _ = await one_server(r)
            for _ in range(3):
                await r.trainer.whole_step()
            await r.trainer.until(lambda: any(n.version == 3 for n in readies(member)))
            return readies(member)

    told = virtual(main)
    assert [note.version for note in told] == [0, 1, 2, 3]
    assert len({note.digest for note in told}) == 4


def readies(member):
    return [note for note in member.notes if isinstance(note, Ready)]


def test_a_session_that_ends_while_the_digest_is_computed_is_followed_by_one_that_says_it():
    async def main():
        async with swarm(ONE_STAGE) as r:
            server, member, gate = await one_server(r)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            gate.open.clear()
            await r.trainer.commit()
            r.trainer.keep = lambda join: join.version == 1
            await r.cut_off(member)
            await asyncio.sleep(LONG_S)
            assert len(r.trainer.joins) == 1  # it says what it holds when that is certain
            gate.open.set()
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return r.trainer.joins[-1], server.version, weights_of(r)

    join, version, weights = virtual(main)
    assert (join.version, len(join.digest)) == (1, 32)
    assert version == 2
    assert_equal(weights, plain_after(2).flat.parameters)


@pytest.mark.parametrize(("away_s", "hashed"), [(5.0, 0), (2 * FRESH_S, 1)])
def test_weights_that_were_hashed_just_now_are_not_hashed_again_for_a_session(away_s, hashed):
    """It would hold the first step up: 1 GB takes a processor most of a second."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            _, member, _ = await one_server(r)
            await r.trainer.whole_step()
            await r.trainer.until(lambda: any(n.version == 1 for n in readies(member)))
            await asyncio.sleep(away_s)
            weights = r.engines[peer(2).raw][-1].weights
            calls, hashes = [], weights.hashes
            weights.hashes = lambda: calls.append(1) or hashes()
            r.trainer.keep = lambda join: join.version == 1
            await r.cut_off(member)
            await r.trainer.until_ready(1)
            return len(calls)

    assert virtual(main) == hashed


def test_a_commit_waits_for_the_digest_of_what_it_changes():
    """It was sent again in the next session, which began before the digest was known."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            server, member, gate = await one_server(r)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            await server._replica.hashed(None)
            gate.open.clear()
            server._replica._digest.compute()
            order = Commit(RUN_ID, 0, r.trainer.generation, member.record.incarnation, 1.0, 1e-2)
            committing = asyncio.ensure_future(r.trainer.call(member, order))
            await asyncio.sleep(LONG_S)
            assert (committing.done(), server.version) == (False, 0)
            gate.open.set()
            answer = await committing
            return answer, server.version, weights_of(r)

    answer, version, weights = virtual(main)
    assert (replace(answer, seconds=None), version) == (Committed(1, applied=True), 1)
    assert_equal(weights, plain_after(1).flat.parameters)


def test_weights_that_cannot_be_hashed_are_kept_and_hashed_again():
    """They may be the last of their stage, and a hash only reads them."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = FaultyGate()
            await r.ready_servers(2, background=gate)
            (member,) = r.trainer.members.values()
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            gate.fails = True
            await r.trainer.commit()
            await member.over.wait()
            await asyncio.sleep(LONG_S)
            assert len(r.trainer.joins) == 1  # it has nothing to say yet
            gate.fails = False
            r.trainer.version, r.trainer.keep = 1, lambda join: join.version == 1
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return len(r.trainer.joins), r.trainer.joins[-1], weights_of(r)

    joins, join, weights = virtual(main)
    assert (joins, join.version, len(join.digest)) == (2, 1, 32)
    assert_equal(weights, plain_after(2).flat.parameters)


def test_a_memory_fault_is_told_with_the_next_reduction():
    async def main():
        async with swarm(ONE_STAGE) as r:
            await r.ready_servers(2, 3)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            r.engines[peer(3).raw][-1].weights._flat.exp_avg_sq_N[5] += 1.0
            await r.trainer.commit()
            await r.trainer.step_pushes()
            return await r.trainer.reduce()

    answers = virtual(main)
    assert len({answer.digest for answer in answers.values()}) == 1
    assert len({answer.state for answer in answers.values()}) == 2


class FaultyGate(Gate):
    """A thread on which every work fails, when it is told so."""

    fails = False

    async def __call__(self, work):
        if self.fails:
            raise Refused("the device is lost")
        return await super().__call__(work)
