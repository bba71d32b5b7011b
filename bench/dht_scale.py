"""How long a get takes in a DHT of many nodes, a share of them dead in everybody's tables.

    python bench/dht_scale.py [--nodes 10000] [--stale 0.3] [--seed 1] [--dial-rtts 0] [--json FILE]

The service's own code runs in virtual time over a simulated network (hosts on a
plane, round trips of 100 ms in the median). Tables are filled from what is true, and
their stale entries are never pruned, which is pessimistic. Values are put by random
nodes and got by others, each by a `get` of its own.

With `--dial-rtts 0` everybody can be asked at once, as over pooled connections or
datagrams. With 2 (TCP and Noise XX: a round trip each) a request to a peer without a
link waits so long first; links to table entries are up, as between nodes that have run for a while.
"""

import asyncio
import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from results import command_line, quantile, write_json

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from worlds.dht import DhtWorld, DhtWorldConfig

from p2pswarm.discovery.dht.node import Dht
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

TTL_S = 3600.0
WARM_UP_LOOKUPS = 3  # of each client: a node that has run for a while knows its round trips
TOGETHER = 100  # operations under way at once; in virtual time they do not slow each other


@dataclass(slots=True)
class Outcome:
    """What came of the run."""

    put_s: list[float]
    get_s: list[float]
    found: int
    calls: int
    """Requests of the gets."""


async def timed_put(node: Dht, key: bytes) -> float:
    now = asyncio.get_running_loop().time
    begin_s = now()
    await node.put(key, b"", key, TTL_S, republish=False)
    return now() - begin_s


async def timed_get(node: Dht, key: bytes) -> tuple[float, bool]:
    now = asyncio.get_running_loop().time
    begin_s = now()
    found = await node.get(key)
    return now() - begin_s, b"" in found and found[b""].value == key


async def measure(config: DhtWorldConfig, values: int, clients: int, *, linked: bool) -> Outcome:
    """Put, then get every value once by one of the clients."""
    begin_s = time.perf_counter()
    world = DhtWorld(config)
    if linked:
        world.link_tables()
    print(f"{config.nodes} nodes built in {time.perf_counter() - begin_s:.1f} s", file=sys.stderr)
    keys = [hashlib.sha256(b"value %d" % i).digest() for i in range(values)]
    putters = world.rng.sample(world.nodes, min(clients, len(world.nodes)))
    getters = world.rng.sample(world.nodes, min(clients, len(world.nodes)))
    for node in dict.fromkeys(putters + getters):
        for _ in range(WARM_UP_LOOKUPS):
            await node.closest(world.rng.randbytes(32))
    put_s: list[float] = []
    for batch in batches(keys):
        jobs = [timed_put(world.rng.choice(putters), key) for key in batch]
        put_s += await asyncio.gather(*jobs)
    await asyncio.sleep(10)  # replicas that nobody waits for
    got: list[tuple[float, bool]] = []
    before = sum(node.calls for node in world.nodes)
    for batch in batches(keys):
        jobs = [timed_get(world.rng.choice(getters), key) for key in batch]
        got += await asyncio.gather(*jobs)
    await asyncio.sleep(10)
    calls = sum(node.calls for node in world.nodes) - before
    await world.close()
    found = sum(ok for _, ok in got)
    return Outcome(put_s, [taken_s for taken_s, _ in got], found, calls)


def batches(keys: list[bytes]) -> list[list[bytes]]:
    return [keys[i : i + TOGETHER] for i in range(0, len(keys), TOGETHER)]


def report(config: DhtWorldConfig, outcome: Outcome, taken_s: float) -> dict[str, float]:
    result = {
        "nodes": config.nodes,
        "found": outcome.found / len(outcome.get_s),
        "p50_ms": 1000 * quantile(outcome.get_s, 0.5),
        "p95_ms": 1000 * quantile(outcome.get_s, 0.95),
        "p99_ms": 1000 * quantile(outcome.get_s, 0.99),
        "put_p50_ms": 1000 * quantile(outcome.put_s, 0.5),
        "put_p95_ms": 1000 * quantile(outcome.put_s, 0.95),
        "calls_per_get": outcome.calls / len(outcome.get_s),
        "stale": config.stale,
        "seed": config.seed,
        "dial_rtts": config.world.dial_rtts,
        "wall_s": taken_s,
    }
    print(
        f"{config.nodes} nodes, {100 * config.stale:g} % stale, "
        f"dial {config.world.dial_rtts:g} RTT: "
        f"get p50 {result['p50_ms']:.0f} p95 {result['p95_ms']:.0f} p99 {result['p99_ms']:.0f} ms, "
        f"put p50 {result['put_p50_ms']:.0f} p95 {result['put_p95_ms']:.0f} ms, "
        f"found {100 * result['found']:.2f} %, {result['calls_per_get']:.1f} calls a get, "
        f"{taken_s:.0f} s"
    )
    return result


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--stale", type=float, default=0.3, help="dead share of table entries")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--values", type=int, default=1000, help="put once and got once each")
    parser.add_argument("--clients", type=int, default=100, help="nodes that get, and that put")
    parser.add_argument("--dial-rtts", type=float, default=0.0, help="before a first request")
    parser.add_argument("--cold", action="store_true", help="no link is up before the first call")
    args = parser.parse_args()
    config = DhtWorldConfig(
        nodes=args.nodes,
        stale=args.stale,
        seed=args.seed,
        world=WorldConfig(dial_rtts=args.dial_rtts),
    )
    begin_s = time.perf_counter()
    outcome = run(measure(config, args.values, args.clients, linked=not args.cold), args.seed)
    result = report(config, outcome, time.perf_counter() - begin_s)
    write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
