"""How many values are found in a DHT some of whose nodes are hostile, and what it costs.

    python bench/dht_attack.py [--nodes 2000] [--hostile 0.2] [--ground 200] [--json FILE]

A share of the nodes censors and lies (`tests/worlds/dht_attack.py`), and `--ground` more ids stand
next to every key that is put. The honest nodes' own code runs in virtual time. Each value is put by
one honest node, and got by `--readers` others. With `--radius` the ground ids do not stand closer
than all honest ones, but scattered over the place of so many honest nodes, which is harder to see.
"""

import asyncio
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from results import command_line, quantile, write_json

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from worlds.dht_attack import AttackConfig, AttackedDht

from p2pswarm.base.errors import SwarmError
from p2pswarm.discovery.dht.crowding import keys_elsewhere
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.sim.loop import run

TTL_S = 3600.0
WARM_UP_LOOKUPS = 3  # of each client: a node that has run for a while knows its round trips


@dataclass(slots=True)
class Outcome:
    """What came of the run."""

    found: int
    wrong: int
    gets: int
    get_s: list[float]
    put_s: list[float]
    put_calls: float
    get_calls: float


async def get(node: Dht, key: bytes, subkey: bytes) -> tuple[float, bytes | None]:
    now = asyncio.get_running_loop().time
    begin_s = now()
    records = await node.get(key)
    return now() - begin_s, records[subkey].value if subkey in records else None


async def measure(config: AttackConfig, values: int, readers: int, *, elsewhere: bool) -> Outcome:
    """Put each value, and let readers get it."""
    chance = random.Random(config.seed)
    keys = [chance.randbytes(32) for _ in range(values)]
    begin_s = time.perf_counter()
    everywhere = [other for key in keys for other in keys_elsewhere(key)] if elsewhere else []
    attacked = AttackedDht(config, [*keys, *everywhere] if config.ground else ())
    print(f"built in {time.perf_counter() - begin_s:.1f} s", file=sys.stderr)
    writers = chance.sample(attacked.honest, min(values, len(attacked.honest)))
    getters = chance.sample(attacked.honest, min(max(readers, 20), len(attacked.honest)))
    for node in dict.fromkeys(writers + getters):
        for _ in range(WARM_UP_LOOKUPS):
            await node.closest(chance.randbytes(32))
    now = asyncio.get_running_loop().time
    put_s: list[float] = []
    calls = sum(node.calls for node in attacked.honest)
    subkeys = []
    for number, key in enumerate(keys):
        node = writers[number % len(writers)]
        subkeys.append(node.contact.peer.raw)
        begin_s = now()
        try:
            await node.put(key, node.contact.peer.raw, key, TTL_S, republish=False)
        except SwarmError as error:
            print(f"put: {error}", file=sys.stderr)
        put_s.append(now() - begin_s)
    await asyncio.sleep(10)
    put_calls = sum(node.calls for node in attacked.honest) - calls
    calls += put_calls
    found = wrong = 0
    get_s: list[float] = []
    for key, subkey in zip(keys, subkeys, strict=True):
        some = [node for node in getters if node.contact.peer.raw != subkey]
        jobs = [get(node, key, subkey) for node in chance.sample(some, min(readers, len(some)))]
        for taken_s, value in await asyncio.gather(*jobs):
            get_s.append(taken_s)
            found += value == key
            wrong += value is not None and value != key
    await asyncio.sleep(10)
    get_calls = sum(node.calls for node in attacked.honest) - calls
    await attacked.world.close()
    return Outcome(
        found, wrong, len(get_s), get_s, put_s, put_calls / values, get_calls / len(get_s)
    )


def report(config: AttackConfig, outcome: Outcome, taken_s: float) -> dict[str, float]:
    result = {
        "nodes": config.nodes,
        "hostile": config.hostile,
        "ground": config.ground,
        "ground_nets": config.ground_nets,
        "radius": config.radius,
        "seed": config.seed,
        "found": outcome.found / outcome.gets,
        "correct": 1 - outcome.wrong / outcome.gets,
        "get_p50_ms": 1000 * quantile(outcome.get_s, 0.5),
        "get_p95_ms": 1000 * quantile(outcome.get_s, 0.95),
        "put_p50_ms": 1000 * quantile(outcome.put_s, 0.5),
        "put_p95_ms": 1000 * quantile(outcome.put_s, 0.95),
        "calls_per_put": outcome.put_calls,
        "calls_per_get": outcome.get_calls,
        "wall_s": taken_s,
    }
    print(
        f"{config.nodes} nodes, {100 * config.hostile:g} % hostile, {config.ground} ids next to "
        f"each key (radius {config.radius:g}): found {100 * result['found']:.1f} %, "
        f"correct {100 * result['correct']:.1f} % of {outcome.gets}; "
        f"get p50 {result['get_p50_ms']:.0f} p95 {result['get_p95_ms']:.0f} ms, "
        f"put p50 {result['put_p50_ms']:.0f} p95 {result['put_p95_ms']:.0f} ms; "
        f"{outcome.put_calls:.0f} calls a put, {outcome.get_calls:.0f} a get, {taken_s:.0f} s"
    )
    return result


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--hostile", type=float, default=0.2, help="share of the nodes")
    parser.add_argument("--one-net", type=float, default=0.3, help="share of these in one /16")
    parser.add_argument("--ground", type=int, default=0, help="hostile ids next to each key")
    parser.add_argument("--ground-nets", type=int, default=0, help="/16s that they share; 0: none")
    parser.add_argument("--radius", type=float, default=0.0, help="how far these are scattered")
    parser.add_argument(
        "--elsewhere", action="store_true", help="as many next to each key of its copies, too"
    )
    parser.add_argument("--values", type=int, default=20)
    parser.add_argument("--readers", type=int, default=20, help="gets of each value")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    config = AttackConfig(
        nodes=args.nodes,
        hostile=args.hostile,
        one_net=args.one_net,
        ground=args.ground,
        ground_nets=args.ground_nets,
        radius=args.radius,
        seed=args.seed,
    )
    begin_s = time.perf_counter()
    outcome = run(measure(config, args.values, args.readers, elsewhere=args.elsewhere), args.seed)
    result = report(config, outcome, time.perf_counter() - begin_s)
    write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
