"""Averaging among simulated peers: the same bytes everywhere, or a reason."""

import asyncio
import math
from dataclasses import replace

import pytest
import torch
from run.averaging.harness import LENGTH, RUN, Circle

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.piece_delivery import VIEW_S
from p2pswarm.run.averaging.piece_lane import PIECES_MOST
from p2pswarm.run.averaging.shards import PIECE
from p2pswarm.run.messages.step import Shard
from p2pswarm.sim.loop import run
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.registry import encode


def averaged(members, observers=0, codec="raw", length=LENGTH):
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, members, observers, codec, length=length)
            return circle.values, *await circle.average(circle.order())

    return run(main(), seed=1)


@pytest.mark.parametrize("members", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("observers", [0, 2])
def test_everybody_holds_the_sum_in_the_groups_order(members, observers):
    values, reduced, outcomes = averaged(members, observers)

    total = values[0].clone()
    for value in values[1:members]:
        total += value
    assert all(torch.equal(r, total) for r in reduced)
    assert len({o.digest for o in outcomes}) == 1
    assert outcomes[0].squared_norm == pytest.approx(total.double().square().sum().item())


@pytest.mark.parametrize("codec", ["fp16", "bf16", "int8", "planes-zstd"])
def test_everybody_holds_the_same_bytes_whatever_the_codec(codec):
    values, reduced, outcomes = averaged(3, 1, codec)

    assert len({o.digest for o in outcomes}) == 1
    assert all(torch.equal(r, reduced[0]) for r in reduced)
    assert torch.allclose(reduced[0], sum(values[:3]), atol=0.1)


def test_a_large_sum_goes_in_pieces():
    values, reduced, outcomes = averaged(2, 1, length=2 * PIECE + 7)

    assert len({o.digest for o in outcomes}) == 1
    assert torch.equal(reduced[2], values[0] + values[1])


def test_the_sums_are_only_read():
    before = torch.randn(LENGTH, generator=torch.Generator().manual_seed(3))
    values, _, _ = averaged(2)

    assert torch.equal(values[0], before)


def test_a_sum_that_is_not_finite_has_no_norm():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            circle.values[1][7] = math.inf
            _, outcomes = await circle.average(circle.order())
            return outcomes

    assert [o.squared_norm for o in run(main(), seed=1)] == [None, None]


def test_pieces_that_are_here_before_the_order_wait_for_it():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 3, 1)
            order = circle.order()
            sums = [TorchSums(v, "raw") for v in circle.values]
            going = []
            for number, averaging in enumerate(circle.averagings):
                going.append(tasks.create_task(averaging.average(order, sums[number])))
                await asyncio.sleep(2.0)
            return [(await task).digest for task in going]

    assert len(set(run(main(), seed=1))) == 1


def test_pieces_whose_order_never_comes_are_refused():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            sums = TorchSums(circle.values[0], "raw")
            with pytest.raises(Refused, match=f"averaging with {circle.peers[1].short}.*no order"):
                await circle.averagings[0].average(circle.order(), sums)

    run(main(), seed=1)


def test_a_lost_member_is_named_and_the_next_generation_does_without_it():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 3)
            sums = [TorchSums(v, "raw") for v in circle.values]
            order = circle.order()
            going = [
                asyncio.ensure_future(circle.averagings[n].average(order, sums[n])) for n in (0, 1)
            ]
            await asyncio.sleep(0.5)
            circle.world.kill(circle.peers[2], silent=False)
            for task in going:
                with pytest.raises(Refused, match=circle.peers[2].short):
                    await task
            reduced, outcomes = await circle.average(circle.order(2, without=(2,)), who=(0, 1))
            return circle.values, reduced, outcomes

    values, reduced, outcomes = run(main(), seed=1)
    assert torch.equal(reduced[0], values[0] + values[1])
    assert outcomes[0] == outcomes[1]


def test_a_newer_order_ends_the_older():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            sums = TorchSums(circle.values[0], "raw")
            older = asyncio.ensure_future(circle.averagings[0].average(circle.order(1), sums))
            await asyncio.sleep(0.01)
            _, outcomes = await circle.average(circle.order(2))
            with pytest.raises(NotServing, match="newer"):
                await older
            with pytest.raises(NotServing, match="comes after"):
                await circle.averagings[0].average(circle.order(2), sums)
            return outcomes

    outcomes = run(main(), seed=1)
    assert outcomes[0] == outcomes[1]


def test_a_piece_of_an_averaging_that_is_over_is_refused():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            await circle.average(circle.order())
            encoded_tensor = encode(torch.zeros(2560), "raw")
            late = Shard(RUN, 0, 1, True, 1, encoded_tensor.meta)
            to = circle.rpcs[0].contact
            async with circle.rpcs[1].open_stream(to, late, 10.0) as stream:
                with pytest.raises(NotServing, match="over"):
                    await stream.receive()

    run(main(), seed=1)


def test_a_peer_without_memory_is_tried_again():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 4, budget=Budget(6_000, 6_000))
            _, outcomes = await circle.average(circle.order())
            return outcomes

    assert len({o.digest for o in run(main(), seed=1)}) == 1


def test_a_member_that_no_view_names_is_refused_in_the_end():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            circle.contacts.clear()
            with pytest.raises(Refused, match="no view names it"):
                await circle.averagings[0].average(
                    circle.order(), TorchSums(circle.values[0], "raw")
                )
            return asyncio.get_running_loop().time()

    assert run(main(), seed=1) == VIEW_S


def test_a_view_that_comes_after_the_order_is_taken_up_at_once():
    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2, 1)
            contacts = dict(circle.contacts)
            circle.contacts.clear()

            def view_comes():
                circle.contacts.update(contacts)
                for averaging in circle.averagings:
                    averaging.members_changed()

            loop.call_later(1.0, view_comes)
            reduced, _ = await circle.average(circle.order())
            return circle.values, reduced, loop.time()

    values, reduced, now_s = run(main(), seed=1)
    assert torch.equal(reduced[2], values[0] + values[1])
    assert now_s < 2.0


def test_what_waits_for_its_order_is_bounded():
    """The receiver is busy for as long as it has no order and no room for early pieces."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2, settings=AveragingSettings(early_max=0, piece_s=3.0))
            with pytest.raises(Refused, match="no memory granted within 3 s"):
                await circle.averagings[0].average(
                    circle.order(), TorchSums(circle.values[0], "raw")
                )

    run(main(), seed=1)


@pytest.mark.parametrize("observers", [1, 2])
def test_newcomers_take_none_of_the_links_until_the_members_have_all(observers):
    """They would take a share of each member's way to the internet, and the step waits for it."""
    members, small = 3, AveragingSettings(piece=1024)

    def took_s(observers):
        async def main():
            loop = asyncio.get_running_loop()
            async with asyncio.TaskGroup() as tasks:
                circle = Circle(tasks, members, observers, length=60 * 1024, settings=small)
                circle.links(1e5)
                newcomers = circle.begin(circle.order(), range(members, members + observers))
                await circle.average(circle.order(), who=range(members))
                done_s = loop.time()
                for newcomer in newcomers:
                    await newcomer
                return done_s, loop.time()

        return run(main(), seed=1)

    alone_s, _ = took_s(0)
    beside_s, newcomers_s = took_s(observers)
    assert beside_s < 1.05 * alone_s
    assert newcomers_s > beside_s


def test_an_observer_that_becomes_a_member_with_the_step_has_all_as_soon_as_the_members():
    small = AveragingSettings(piece=1024)

    def behind_s(prompt):
        async def main():
            loop = asyncio.get_running_loop()
            async with asyncio.TaskGroup() as tasks:
                circle = Circle(tasks, 3, 2, length=60 * 1024, settings=small)
                circle.links(1e5)
                order = replace(circle.order(), prompt=prompt)
                first, other = circle.begin(order, (3, 4))
                await circle.average(order, who=range(3))
                done_s = loop.time()
                await first
                first_s = loop.time() - done_s
                await other
                return first_s, loop.time() - done_s, done_s

        return run(main(), seed=1)

    late_s, _, alone_s = behind_s(0)
    prompt_s, other_s, beside_s = behind_s(1)
    assert prompt_s < 0.1 * late_s
    assert other_s > prompt_s
    assert beside_s < 1.5 * alone_s  # each member sends to three instead of two


def test_a_newcomer_is_less_than_a_round_behind_when_rounds_follow_each_other_at_once():
    """Its pieces wait for the members' of their own round, and for no later ones."""
    rounds, small = 6, AveragingSettings(piece=1024)

    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2, 1, length=60 * 1024, settings=small)
            circle.links(1e5)

            async def follow():
                for step in range(rounds):
                    (following,) = circle.begin(circle.order(step=step), [2])
                    await following

            newcomer = tasks.create_task(follow())
            for step in range(rounds):
                await circle.average(circle.order(step=step), who=(0, 1))
            done_s = loop.time()
            await newcomer
            return done_s, loop.time()

    members_s, newcomer_s = run(main(), seed=1)
    assert newcomer_s < members_s * (1 + 1 / rounds)


def test_nothing_of_a_round_that_failed_is_sent_to_newcomers():
    """It would only take their links from the round that is done again."""
    small = AveragingSettings(piece=1024)

    def took_s(*, fails):
        async def main():
            async with asyncio.TaskGroup() as tasks:
                circle = Circle(tasks, 2, 1, length=60 * 1024, settings=small)
                circle.links(1e5)
                if fails:
                    ended = circle.begin(circle.order(), range(3))
                    await asyncio.sleep(1.5)
                reduced, _ = await circle.average(circle.order(generation=2))
                if fails:
                    assert all(isinstance(each.exception(), NotServing) for each in ended)
                total = circle.total(without=(2,))
                assert all(torch.equal(each, total) for each in reduced)
                return asyncio.get_running_loop().time()

        return run(main(), seed=1)

    on_their_way_s = PIECES_MOST * 4096 / 1e5
    assert took_s(fails=True) < took_s(fails=False) + 1.5 + on_their_way_s + 0.05


def test_newcomers_that_fall_behind_hold_nobody_up():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2, 1, settings=AveragingSettings(observed_max=0))
            _, outcomes = await circle.average(circle.order(), who=(0, 1))
            return outcomes

    outcomes = run(main(), seed=1)
    assert outcomes[0] == outcomes[1]


def test_a_piece_that_takes_longer_than_a_view_is_sent_once():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 2)
            slow = circle.world.world.hosts[circle.peers[1].raw]
            slow.down_bytes_per_s = LENGTH * 2 / (2 * VIEW_S)  # half of 4 bytes each: 10 s
            await circle.average(circle.order())
            return asyncio.get_running_loop().time(), circle.rpcs[0].host.sent_bytes

    now_s, sent_bytes = run(main(), seed=1)
    assert now_s > VIEW_S
    assert sent_bytes < 1.5 * 4 * LENGTH


def test_links_that_carry_little_take_as_long_as_their_trainer_lets_them():
    """All pieces go at once: each takes many minutes, and nothing is wrong with anybody."""

    async def main():
        async with asyncio.TaskGroup() as tasks:
            circle = Circle(tasks, 3, settings=AveragingSettings(piece=500))
            circle.links(100.0)
            reduced, _ = await circle.average(circle.order())
            assert asyncio.get_running_loop().time() > 120.0
            return [torch.equal(each, circle.total()) for each in reduced]

    assert all(run(main(), seed=1))
