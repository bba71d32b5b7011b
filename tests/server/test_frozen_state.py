"""A version that is read while commits change the weights."""

import asyncio
import contextlib

import pytest
import torch
from server.harness import compute_here, virtual

from p2pswarm.errors import NotSaved
from p2pswarm.server.frozen_state import FrozenState

N = 100  # float64: 800 bytes of each tensor


class Weights:
    """Three tensors, and commits that add 1 to all of them."""

    def __init__(self, window_bytes: int, hold_s: float = 20.0) -> None:
        self.tensors = [torch.arange(N, dtype=torch.float64) + 1000 * k for k in range(3)]
        self.before = b"".join(x.numpy().tobytes() for x in self.tensors)
        self.frozen = FrozenState(self.tensors, window_bytes, hold_s, piece_bytes=160)

    async def commit(self) -> None:
        await self.frozen.before_change(compute_here)
        for x in self.tensors:
            x.add_(1)

    async def read(self, each_s: float = 1.0) -> bytes:
        found = b""
        async with contextlib.aclosing(self.frozen.pieces()) as pieces:
            async for piece in pieces:
                await asyncio.sleep(each_s)  # as a disk takes it
                found += bytes(piece)
        return found


def test_nobody_waits_for_a_version_that_was_read():
    async def story():
        weights = Weights(0)
        assert await weights.read() == weights.before
        await weights.commit()
        return weights.frozen.held_s, weights.frozen.read_bytes == weights.frozen.size

    assert virtual(story) == (0.0, True)


@pytest.mark.parametrize(("window_bytes", "held_s"), [(0, 12.5), (480, 9.5), (10_000, 0.5)])
def test_a_commit_waits_until_what_is_left_fits_the_window(window_bytes, held_s):
    """15 pieces of a second each; the commit comes after 2.5 s, in the middle of the third."""

    async def story():
        weights = Weights(window_bytes)
        reading = asyncio.ensure_future(weights.read())
        await asyncio.sleep(2.5)
        await weights.commit()
        await weights.commit()  # the next one finds nothing to wait for
        assert await reading == weights.before
        return weights.frozen.held_s

    assert virtual(story) == pytest.approx(held_s)


def test_a_target_that_is_too_slow_costs_the_checkpoint_and_not_the_step():
    async def story():
        weights = Weights(0, hold_s=5.0)
        reading = asyncio.ensure_future(weights.read())
        await asyncio.sleep(2.5)
        await weights.commit()
        assert weights.frozen.held_s == pytest.approx(5.0)
        with pytest.raises(NotSaved, match=r"raise serve\.checkpoint_mib"):
            await reading

    virtual(story)


def test_a_commit_waits_for_nobody_who_has_given_up():
    async def story():
        weights = Weights(0)
        reading = asyncio.ensure_future(weights.read())
        await asyncio.sleep(2.5)
        commit = asyncio.ensure_future(weights.commit())
        await asyncio.sleep(0.1)
        reading.cancel()
        await commit
        return weights.frozen.held_s

    assert virtual(story) == pytest.approx(0.1)


def test_weights_that_were_replaced_are_not_saved():
    async def story():
        weights = Weights(0)
        reading = asyncio.ensure_future(weights.read())
        await asyncio.sleep(2.5)
        weights.frozen.give_up("other weights were loaded")
        weights.frozen.give_up("the first reason stands")
        with pytest.raises(NotSaved, match="other weights were loaded"):
            await reading

    virtual(story)
