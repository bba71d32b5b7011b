"""ValueGetter: gets the values of a key, also of one around which ids were ground.

It runs queries and waits for them; whom they ask is decided by `value_reader.py`, and where to look
for a crowded key by `crowding.py`.

Units:   seconds on the loop's clock.
Errors:  none: what is not found is not there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from p2pswarm.discovery.dht.crowding import PATIENCE_S, keys_elsewhere
from p2pswarm.discovery.dht.get_value import GetValue
from p2pswarm.discovery.dht.holder_search import HolderSearch
from p2pswarm.discovery.dht.messages import Get, Record
from p2pswarm.discovery.dht.query_runner import QueryRunner, RunningQuery
from p2pswarm.discovery.dht.records import merge
from p2pswarm.discovery.dht.store_batches import BatchedRecord
from p2pswarm.discovery.dht.value_reader import ValueReader

Records = dict[bytes, Record]


class ValueGetter:
    """The gets of one node."""

    def __init__(
        self,
        reader: ValueReader,
        runner: QueryRunner,
        search: HolderSearch,
        wall_s: Callable[[], float],
        was_read: Callable[[], None],
    ) -> None:
        """`was_read`: called when records of our own store were read."""
        self._reader = reader
        self._runner = runner
        self._search = search
        self._wall_s = wall_s
        self._was_read = was_read
        self._under_way: dict[tuple[bytes, int], tuple[RunningQuery, GetValue]] = {}

    async def get(self, key: bytes, quorum: int) -> Records:
        """The newest records of a key by subkey; empty if there are none."""
        if quorum == 1 and (records := await self._held(key)):
            return records
        records = {}
        if not self._search.crowded(key):
            if (key, quorum) not in self._under_way and self._missed(key):
                return {}
            records = await self._ask(key, quorum)
            if not self._search.crowded(key) and (records or self._search.knows_all(key)):
                return records
        if not (records and quorum == 1):
            merge(records, (await self._get_elsewhere(key, quorum)).values())
        return records

    def _missed(self, key: bytes) -> bool:
        return self._reader.misses.holds(key, self._now_s())

    async def _ask(self, key: bytes, quorum: int, patience_s: float | None = None) -> Records:
        """Ask those closest to a key; notes whether a crowd stands there."""
        under_way = self._under_way.get((key, quorum))
        if under_way is None:
            under_way = self._start(key, quorum, patience_s)
        running, get_value = under_way
        await running.wait()
        if get_value.lookup.crowded:
            self._search.saw_crowd(key)
        return dict(get_value.records)

    async def _get_elsewhere(self, key: bytes, quorum: int) -> Records:
        """Get from where a key's records are besides: under other keys, and around a crowded key.

        The other keys cost little if nobody stands next to them. What is crowded, too, is looked
        for around, all at once.
        """
        places, crowded = keys_elsewhere(key), self._search.crowded
        self._reader.misses.forget(key)
        calm = [self._ask(each, quorum, PATIENCE_S) for each in places if not crowded(each)]
        records = await _first(calm, enough=quorum == 1)
        if not (records and quorum == 1):
            around = [self._get_around(each, quorum) for each in [key, *places] if crowded(each)]
            merge(records, (await _first(around, enough=quorum == 1)).values())
        if not records and not crowded(key):
            self._reader.misses.add(key, self._now_s())
        return records or await self._held(key, anyway=True)

    async def _get_around(self, key: bytes, quorum: int) -> Records:
        """Get from the region of a crowded key, whose closest peers may all be hostile."""
        holders = await self._search.region(key, self._search.known(key))
        request = Get(key, b"", False, 0)
        get_value = self._reader.among(request, quorum, holders, self._now_s(), self._wall_s())
        await self._runner.start_query(get_value, lambda: self._got(key, quorum, get_value)).wait()
        return dict(get_value.records)

    async def _held(self, key: bytes, *, anyway: bool = False) -> Records:
        """What we hold ourselves; between two pages others have their turn."""
        records: Records = {}
        now_ms = int(1000 * self._wall_s())
        for number, page in enumerate(self._reader.held(key, now_ms, anyway=anyway)):
            if number:
                await asyncio.sleep(0)
            records |= page
        self._was_read()
        return records

    def _start(
        self, key: bytes, quorum: int, patience_s: float | None
    ) -> tuple[RunningQuery, GetValue]:
        get_value = self._reader.query(key, quorum, self._now_s(), self._wall_s(), patience_s)
        running = self._runner.start_query(get_value, lambda: self._got(key, quorum, get_value))
        if not get_value.finished:
            self._under_way[key, quorum] = running, get_value
        return running, get_value

    def _got(self, key: bytes, quorum: int, get_value: GetValue) -> None:
        self._under_way.pop((key, quorum), None)
        for contact, record in self._reader.ended(key, get_value, self._now_s()):
            self._runner.post(contact, BatchedRecord(record, None))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


async def _first(gets: Iterable[Awaitable[Records]], *, enough: bool) -> Records:
    """The records of several gets; of the first that finds any if that is `enough`."""
    records: Records = {}
    tasks = [asyncio.ensure_future(each) for each in gets]
    try:
        for ended in asyncio.as_completed(tasks):
            merge(records, (await ended).values())
            if records and enough:
                break
    finally:
        for task in tasks:
            task.cancel()
    return records
