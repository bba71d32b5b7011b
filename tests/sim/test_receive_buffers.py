"""Buffers of the simulated network: what fits goes in, what is late is thrown away."""

import pytest

from p2pswarm.base.ids import PeerId
from p2pswarm.sim.receive_buffers import SimReceiveBuffers

ALICE, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)


def set_aside(size_bytes: int) -> tuple[SimReceiveBuffers, bytearray, list[str]]:
    """One buffer for Alice, transfer 1."""
    buffers, memory, filled = SimReceiveBuffers(), bytearray(size_bytes), []
    buffer = buffers.set_aside(ALICE, memoryview(memory), lambda: filled.append("filled"))
    assert buffer.transfer == 1
    return buffers, memory, filled


def test_chunks_may_come_in_any_order():
    buffers, memory, filled = set_aside(4)

    assert buffers.arrived(ALICE, 1, 2, b"cd")
    assert filled == []
    assert buffers.arrived(ALICE, 1, 0, b"ab")

    assert memory == b"abcd"
    assert filled == ["filled"]


def test_an_empty_buffer_is_full_at_once():
    buffers, _, filled = set_aside(0)

    assert filled == ["filled"]
    assert buffers.arrived(ALICE, 1, 0, b"late")


@pytest.mark.parametrize("given", ["filled", "dropped"])
def test_late_chunks_are_thrown_away(given):
    buffers, memory, _ = set_aside(2)
    if given == "filled":
        buffers.arrived(ALICE, 1, 0, b"ab")
    else:
        buffers.drop(1)

    assert buffers.arrived(ALICE, 1, 0, b"xy")

    assert b"xy" not in memory


@pytest.mark.parametrize(
    ("peer", "transfer", "offset", "chunk"),
    [(BOB, 1, 0, b"a"), (ALICE, 1, 3, b"ab"), (ALICE, 2, 0, b"a"), (ALICE, 0, 0, b"a")],
    ids=["of another peer", "beyond the end", "never granted", "no number"],
)
def test_bytes_that_fit_no_buffer_are_a_breach(peer, transfer, offset, chunk):
    buffers, memory, filled = set_aside(4)

    assert not buffers.arrived(peer, transfer, offset, chunk)

    assert memory == bytes(4)
    assert filled == []
