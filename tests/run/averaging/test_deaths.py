"""A member that dies, freezes, lies or is slow: never a wrong sum, and nobody waits for it."""

import asyncio
from dataclasses import replace

import pytest
import torch
from core import core_of
from run.averaging.harness import Circle

from p2pswarm.base.errors import LinkLost, NotServing, SwarmError
from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings
from p2pswarm.run.averaging.piece_lane import PIECES_LEAST, parts_ahead
from p2pswarm.run.averaging.round import KEY_BYTES
from p2pswarm.run.averaging.shards import ALIGN
from p2pswarm.sim.loop import run
from p2pswarm.tensors.codecs.registry import encode

SMALL = AveragingSettings(piece=20 * ALIGN)  # 20 KiB
LENGTH = 120 * 20 * ALIGN  # 120 pieces, 2.4 MB
RATE = 2e5  # bytes a second
GRADIENT_S = LENGTH * 4 / RATE  # 12 s: what one gradient takes on a link
AT_ONCE_S = 0.5  # round trips of a simulated world, and the pieces on the wire


def circle(tasks, members=3, **options):
    one = Circle(tasks, members, length=LENGTH, settings=SMALL, **options)
    one.links(RATE)
    return one


async def failures(going):
    """The errors of all tasks, and the time at which the last one ended."""
    errors = await asyncio.gather(*going, return_exceptions=True)
    return errors, asyncio.get_running_loop().time()


@pytest.mark.parametrize("dies_after_s", core_of([0.0, 0.1, 1.0, 8.0, 14.0], [0.1, 8.0]))
def test_a_death_is_noticed_at_once_and_the_others_average_without_it(dies_after_s):
    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks)
            going = one.begin(one.order(), (0, 1, 2))
            await asyncio.sleep(dies_after_s)
            one.world.kill(one.peers[2], silent=False)
            going[2].cancel()
            errors, ended_s = await failures(going)
            begun_s = loop.time()
            reduced, outcomes = await one.average(one.order(2, without=(2,)), who=(0, 1))
            return one, errors, ended_s, loop.time() - begun_s, reduced, outcomes

    one, errors, ended_s, took_s, reduced, outcomes = run(main(), seed=1)
    assert all(isinstance(error, SwarmError) for error in errors[:2])
    assert ended_s - dies_after_s < AT_ONCE_S
    assert all(torch.equal(r, one.total(without=(2,))) for r in reduced)
    assert outcomes[0] == outcomes[1]
    assert took_s < 1.5 * GRADIENT_S


def test_a_member_that_dies_after_its_last_piece_costs_the_next_order_only():
    """Nobody has its share of the key then, so nobody has a digest that could be committed."""

    class Mute(Averaging):
        async def _reveal(self, ongoing, tasks):
            await ongoing.has(lambda: False)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = Circle(tasks, 3, kinds=(Mute,))
            going = one.begin(one.order(), (0, 1, 2))
            await asyncio.sleep(5.0)
            one.world.kill(one.peers[0], silent=False)
            going[0].cancel()
            assert not going[1].done()
            reduced, outcomes = await one.average(one.order(2, without=(0,)), who=(1, 2))
            errors, _ = await failures(going[1:])
            return one, errors, reduced, outcomes

    one, errors, reduced, outcomes = run(main(), seed=1)
    assert all(isinstance(error, NotServing) for error in errors)
    assert all(torch.equal(r, one.total(without=(0,))) for r in reduced)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("freezes_after_s", core_of([0.0, 5.0, 10.0], [5.0]))
def test_a_frozen_member_keeps_nobody_from_the_next_generation(freezes_after_s):
    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks)
            going = one.begin(one.order(), (0, 1, 2))
            await asyncio.sleep(freezes_after_s)
            one.world.kill(one.peers[2], silent=True)
            going[2].cancel()
            await asyncio.sleep(3.0)
            begun_s = loop.time()
            reduced, outcomes = await one.average(one.order(2, without=(2,)), who=(0, 1))
            errors, _ = await failures(going[:2])
            return one, errors, loop.time() - begun_s, reduced, outcomes

    one, errors, took_s, reduced, outcomes = run(main(), seed=1)
    assert all(isinstance(error, NotServing) for error in errors)
    assert all(torch.equal(r, one.total(without=(2,))) for r in reduced)
    assert outcomes[0] == outcomes[1]
    assert took_s < 1.5 * GRADIENT_S


def test_an_owner_that_sends_other_bytes_to_different_members_is_found_out():
    class TwoFaced(Averaging):
        async def _send_once(self, ongoing, delivery, message, encoded):
            if message.gathered and encoded and delivery.peer == ongoing.round.others[0]:
                length = ongoing.round.pieces[message.index].span.length
                encoded = encode(torch.full((length,), 7.0), "raw")
            await super()._send_once(ongoing, delivery, message, encoded)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks, kinds=(TwoFaced,))
            _, outcomes = await one.average(one.order())
            return outcomes

    liar, deceived, other = run(main(), seed=1)
    assert deceived.digest != other.digest == liar.digest


def test_a_member_that_tells_its_share_of_the_key_differently_spoils_the_digest_only():
    class TwoFaced(Averaging):
        async def _send_once(self, ongoing, delivery, message, encoded):
            if encoded is None and delivery.peer == ongoing.round.others[0]:
                share = encode(torch.zeros(16, dtype=torch.uint8), "raw")
                message = ongoing.round.shard(message.index, share.meta, gathered=True)
            await super()._send_once(ongoing, delivery, message, encoded)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = Circle(tasks, 3, kinds=(TwoFaced,))
            reduced, outcomes = await one.average(one.order())
            return one.total(), reduced, outcomes

    total, reduced, outcomes = run(main(), seed=1)
    assert all(torch.equal(r, total) for r in reduced)
    assert outcomes[1].digest != outcomes[2].digest


def test_a_slow_member_fills_nobodys_memory():
    """An owner holds few parts of the others while it waits for the slow one's."""
    held = []

    class Counting(Averaging):
        async def shard(self, stream, shard):
            await super().shard(stream, shard)
            held.extend(len(p) for o in self._ongoing.values() for p in (o.parts,))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks, kinds=(Counting, Counting))
            one.links(RATE / 10, 2)
            reduced, outcomes = await one.average(one.order())
            return one.total(), reduced, outcomes

    total, reduced, outcomes = run(main(), seed=1)
    assert all(torch.equal(r, total) for r in reduced)
    assert len(set(outcomes)) == 1
    assert 0 < max(held) <= 2 * parts_ahead(members=3)


def test_pieces_are_reduced_and_sent_on_while_the_next_are_on_the_wire():
    """Both phases of a member carry 4/3 gradients each way; one after another they take twice."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks)
            await one.average(one.order())
            return asyncio.get_running_loop().time()

    assert run(main(), seed=1) < 1.25 * 4 / 3 * GRADIENT_S


def test_a_link_that_another_takes_the_place_of_costs_nothing():
    """Members that dial each other at once lose one of two links, with the first parts on it."""

    class Replaced(Averaging):
        lost = 0

        async def _send_once(self, ongoing, delivery, message, encoded):
            if self.lost < PIECES_LEAST and not message.gathered:
                self.lost += 1
                async with self._rpc.open_stream(delivery.to, message, 10.0) as stream:
                    await stream.receive()
                    raise LinkLost("replaced by another")
            await super()._send_once(ongoing, delivery, message, encoded)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = circle(tasks, kinds=(Replaced, Replaced))
            reduced, outcomes = await one.average(one.order())
            return one.total(), reduced, outcomes, one.averagings[0].lost

    total, reduced, outcomes, lost = run(main(), seed=1)
    assert lost == PIECES_LEAST
    assert all(torch.equal(r, total) for r in reduced)
    assert len(set(outcomes)) == 1


LARGE = 17  # members, so that one of them collects the shares of the key


def test_a_collector_that_tells_somebody_another_share_is_named():
    class Forger(Averaging):
        async def _send_once(self, ongoing, delivery, message, encoded):
            listed = message.tensor.encoded_bytes == LARGE * KEY_BYTES
            if listed and delivery.peer == ongoing.round.others[3]:
                forged = replace(message.tensor, inline=bytes(LARGE * KEY_BYTES))
                message = replace(message, tensor=forged)
            await super()._send_once(ongoing, delivery, message, encoded)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = Circle(tasks, LARGE, kinds=(Averaging, Forger))
            going = one.begin(one.order(generation=1), range(LARGE))
            errors, _ = await failures(going)
            return one.peers[1], errors

    liar, errors = run(main(), seed=1)
    deceived, *_ = [error for error in errors if isinstance(error, SwarmError)]
    assert liar.short in str(deceived)
    assert sum(isinstance(error, SwarmError) for error in errors) == 1


def test_a_collector_that_dies_costs_one_order():
    class Mute(Averaging):
        async def _reveal(self, ongoing, tasks):
            await ongoing.has(lambda: False)

    async def main():
        async with asyncio.TaskGroup() as tasks:
            one = Circle(tasks, LARGE, kinds=(Averaging, Mute))
            going = one.begin(one.order(generation=1), range(LARGE))
            await asyncio.sleep(5.0)
            assert not any(task.done() for task in going)
            one.world.kill(one.peers[1], silent=False)
            going[1].cancel()
            left = [n for n in range(LARGE) if n != 1]
            reduced, outcomes = await one.average(one.order(2, without=(1,)), who=left)
            errors, _ = await failures(going)
            return one, errors, reduced, outcomes

    one, errors, reduced, outcomes = run(main(), seed=1)
    assert all(isinstance(error, NotServing) for n, error in enumerate(errors) if n != 1)
    assert all(torch.equal(r, one.total(without=(1,))) for r in reduced)
    assert len({outcome.digest for outcome in outcomes}) == 1
