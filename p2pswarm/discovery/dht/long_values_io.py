"""LongValues: puts values that are longer than a record into the DHT, and reads them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from p2pswarm.base.loop_clock import now_s
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.discovery.dht.long_values import LongValue, keys_in, part_among, part_key, parts_of
from p2pswarm.discovery.dht.messages import VALUE_BYTES_MAX, Record
from p2pswarm.net.wire.message import encode

KEPT = 32  # values that were read: 4 MB; a swarm has fewer runs with long manifests
AT_ONCE = 8  # looked up together: strangers may name parts that nobody has
PATIENCE_S = 3.0  # who looks for values waits no longer for those that are long
REMEMBERED = 1024  # values that were looked for

Put = Callable[[bytes, bytes, bytes, float], Awaitable[object]]
"""Puts a value: its key, its subkey, the value, and how many seconds it is to last."""
Get = Callable[[bytes], Awaitable[Mapping[bytes, Record]]]


class LongValues:
    """Puts and reads values of any length up to that of a long message."""

    def __init__(self, put: Put, get: Get) -> None:
        self._put, self._get = put, get
        self._kept: RecentItems[bytes, bytes] = RecentItems(KEPT)
        self._tried_s: RecentItems[bytes, float] = RecentItems(REMEMBERED)

    async def put(self, key: bytes, subkey: bytes, value: bytes, ttl_s: float) -> None:
        """Publish a value of ours once, in parts if it needs them; raises as `Dht.put` does.

        `subkey` is our own id: nobody else may write the parts there.
        """
        if len(value) > VALUE_BYTES_MAX:
            parts = parts_of(value)
            for part in parts:
                await self._put(part_key(part), subkey, part, ttl_s)
            value = encode(LongValue(tuple(map(part_key, parts))))
        await self._put(key, subkey, value, ttl_s)

    async def whole(self, values: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The values by subkey, with those that lie in parts put together.

        One whose parts are not found in time is left out. It is looked for again the next time,
        after those that were not looked for yet.
        """
        named = {value: keys for value in values.values() if (keys := keys_in(value))}
        wanted = [value for value in named if value not in self._kept]
        wanted.sort(key=lambda value: self._tried_s.get(value, float("-inf")))
        await self._read({value: named[value] for value in wanted[:AT_ONCE]})
        whole = {
            subkey: self._kept.get(value) if value in named else value
            for subkey, value in values.items()
        }
        return {subkey: value for subkey, value in whole.items() if value is not None}

    async def _read(self, named: Mapping[bytes, Sequence[bytes]]) -> None:
        """Read values whose parts have these keys, as far as they are found in time."""
        if not named:
            return
        for value in named:
            self._tried_s[value] = now_s()
        with contextlib.suppress(TimeoutError):  # those that were found are kept
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                for value, keys in named.items():
                    tasks.create_task(self._read_parts(value, keys))

    async def _read_parts(self, value: bytes, keys: Sequence[bytes]) -> None:
        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(self._read_part(key)) for key in keys]
        parts = [part for read in reads if (part := read.result()) is not None]
        if len(parts) == len(keys):
            self._kept[value] = b"".join(parts)

    async def _read_part(self, key: bytes) -> bytes | None:
        records = await self._get(key)
        return part_among((record.value for record in records.values()), key)
