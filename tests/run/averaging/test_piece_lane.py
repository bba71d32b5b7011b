"""How many pieces of an averaging are on their way to a peer."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from p2pswarm.run.averaging.piece_lane import (
    LANE_BYTES,
    PIECES_LEAST,
    PIECES_MOST,
    PieceLane,
    parts_ahead,
)
from p2pswarm.run.averaging.shards import PIECE
from p2pswarm.run.messages.field_limits import GROUP_MAX

RAW_BYTES = 4 * PIECE
SMALL_BYTES = LANE_BYTES // PIECES_MOST


async def placed(lane: PieceLane, size_bytes: int) -> int:
    """How many pieces of a size fit."""
    async with AsyncExitStack() as stack:
        count = 0
        while lane.fits(size_bytes):
            await stack.enter_async_context(lane.place(size_bytes))
            count += 1
        return count


@pytest.mark.parametrize(
    ("size_bytes", "pieces"),
    [(RAW_BYTES, 4), (16 * RAW_BYTES, PIECES_LEAST), (SMALL_BYTES, 16), (1, PIECES_MOST)],
)
def test_small_pieces_are_more_at_a_time(size_bytes, pieces):
    assert asyncio.run(placed(PieceLane(PIECES_MOST), size_bytes)) == pieces


def test_a_lane_of_few_pieces_has_no_more_whatever_their_size():
    assert asyncio.run(placed(PieceLane(2), 1)) == 2


def test_a_piece_goes_when_another_has_arrived_or_failed():
    async def main() -> list[str]:
        lane, order = PieceLane(1), []

        async def send(name: str, error: Exception | None) -> None:
            async with lane.place(1):
                order.append(f"{name} goes")
                await asyncio.sleep(0)
                order.append(f"{name} is there")
                if error is not None:
                    raise error

        sends = send("a", OSError("lost")), send("b", None), send("c", None)
        await asyncio.gather(*sends, return_exceptions=True)
        return order

    goes = asyncio.run(main())
    assert goes[::2] == ["a goes", "b goes", "c goes"]
    assert goes[1::2] == ["a is there", "b is there", "c is there"]


@pytest.mark.parametrize("members", range(1, GROUP_MAX + 1))
def test_the_parts_of_all_senders_have_a_bound_at_their_owner(members):
    ahead = parts_ahead(members)

    assert PIECES_LEAST <= ahead <= PIECES_MOST
    assert ahead * (members - 1) <= max(64, PIECES_LEAST * (members - 1))
