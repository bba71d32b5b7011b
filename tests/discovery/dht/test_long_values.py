"""Values of more than a record: cut, named, put together again; in parts that prove themselves."""

import asyncio

import pytest
from core import examples
from discovery.dht.harness import SEED, SWARM_KEY, TTL_S, now_s, swarm
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.discovery.dht.long_values import (
    PARTS_MAX,
    LongValue,
    keys_in,
    part_among,
    part_key,
    parts_of,
)
from p2pswarm.discovery.dht.long_values_io import AT_ONCE, PATIENCE_S
from p2pswarm.discovery.dht.messages import VALUE_BYTES_MAX, Ping
from p2pswarm.net.wire.message import LONG_BYTES_MAX, encode
from p2pswarm.sim.loop import run

LONG = bytes(range(256)) * 40


def named(value):
    return encode(LongValue(tuple(map(part_key, parts_of(value)))))


@settings(max_examples=examples(100))
@given(st.integers(VALUE_BYTES_MAX + 1, LONG_BYTES_MAX))
def test_the_parts_of_a_value_are_full_and_make_it_again(size):
    value = (LONG * (size // len(LONG) + 1))[:size]
    parts = parts_of(value)

    assert b"".join(parts) == value
    assert {len(part) for part in parts[:-1]} == {VALUE_BYTES_MAX}
    assert list(keys_in(named(value))) == [part_key(part) for part in parts]


def test_the_longest_value_is_named_in_one_record():
    longest = bytes(LONG_BYTES_MAX)

    assert len(parts_of(longest)) == PARTS_MAX
    assert len(named(longest)) <= VALUE_BYTES_MAX
    with pytest.raises(ValueError, match="129024 bytes at most, not 129025"):
        parts_of(longest + b"\0")


@pytest.mark.parametrize("value", [b"", b"plain", encode(Ping()), named(LONG)[:-1]])
def test_what_names_no_parts_is_a_value_itself(value):
    assert not keys_in(value)


def test_a_part_is_known_by_its_key_among_whatever_else_was_put_there():
    key = part_key(b"part")

    assert part_among([b"other", b"part", b"more"], key) == b"part"
    assert part_among([b"other"], key) is None


@pytest.mark.parametrize("size", [10, VALUE_BYTES_MAX, VALUE_BYTES_MAX + 1, 50_000, LONG_BYTES_MAX])
def test_a_value_of_any_size_is_read_as_it_was_put(size):
    value = (LONG * (size // len(LONG) + 1))[:size]

    async def main():
        async with swarm(12) as world:
            publisher, reader = world.nodes[3], world.nodes[7]
            own = publisher.contact.peer.raw
            await publisher.long_values.put(SWARM_KEY, own, value, TTL_S)

            records = await reader.get(SWARM_KEY)
            found = {subkey: record.value for subkey, record in records.items()}
            assert len(found[own]) <= VALUE_BYTES_MAX
            assert await reader.long_values.whole(found) == {own: value}

    run(main(), SEED)


def test_a_look_waits_a_limited_time_and_comes_to_every_value_in_turn():
    """Strangers name more values than a look reads, and nobody has a part of theirs."""

    async def main():
        async with swarm(12) as world:
            publisher, reader = world.nodes[3], world.nodes[7]
            own = publisher.contact.peer.raw
            await publisher.long_values.put(SWARM_KEY, own, LONG, TTL_S)
            honest = (await reader.get(SWARM_KEY))[own].value
            strange = {bytes([n]): named(LONG + bytes([n])) for n in range(2 * AT_ONCE)}
            values = strange | {own: honest, b"plain": b"plain"}
            for _ in range(2):
                began_s = now_s()
                assert await reader.long_values.whole(values) == {b"plain": b"plain"}
                assert now_s() - began_s <= PATIENCE_S
            found = await reader.long_values.whole(values)
            assert found == {own: LONG, b"plain": b"plain"}
            before = reader.calls
            assert await reader.long_values.whole({own: honest}) == {own: LONG}
            assert reader.calls == before

    run(main(), SEED)


def test_a_value_whose_holders_are_silent_is_left_out_and_found_when_they_are_back():
    async def main():
        async with swarm(2) as world:
            publisher, reader = world.nodes
            own = publisher.contact.peer.raw
            values = {own: named(LONG)}
            assert await reader.long_values.whole(values) == {}
            await publisher.long_values.put(SWARM_KEY, own, LONG, TTL_S)
            await asyncio.sleep(reader.config.negative_s)
            assert await reader.long_values.whole(values) == values | {own: LONG}

    run(main(), SEED)
