"""How long a swarm that was cut in two takes to be one again, when the cut has healed.

    python bench/partition.py [--nodes 1000] [--apart-s 60 600] [--json FILE]

In virtual time, from one seed. Two worlds, each with the nodes' own code: a DHT whose tables were
full before the cut, in which every tenth node publishes a value again and again, and a run whose
members keep its directory. Half of the nodes cannot reach the other half for `--apart-s`. Then it
is measured how long it takes until there is

    one table       every node knows the eight nodes closest to it, of all
    one directory   every member sees all members

`--only dht` or `--only directory` plays one of them. A thousand members for ten minutes take half
an hour of processor time.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from results import command_line, write_json

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from worlds.dht import DhtWorld, DhtWorldConfig, whole_share
from worlds.gossip import GossipWorld, GossipWorldConfig

from p2pswarm.base.errors import SwarmError
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.sim.loop import run

PATIENCE_S = 300.0
SETTLE_S = 20.0  # before the cut
TTL_S = 60.0
STEP_S = 0.5  # how exactly is measured
PUBLISHERS = 10  # every so many-th node


async def until(whole: Callable[[], bool]) -> float | None:
    """Virtual seconds until something is so; None if it is not in time."""
    now = asyncio.get_running_loop().time
    begun_s = now()
    for _ in iter(whole, True):
        if now() - begun_s > PATIENCE_S:
            return None
        await asyncio.sleep(STEP_S)
    return now() - begun_s


async def keep_publishing(node: Dht) -> None:
    """Publish a value, and again, as long as the node lives; half of the holders may be cut off."""
    key = node.contact.peer.raw if node.contact.peer else bytes(32)
    while True:
        try:
            await node.put(key, key, b"value", TTL_S, republish=False)
        except SwarmError as error:
            print(f"put: {error}", file=sys.stderr)
        await asyncio.sleep(TTL_S / 3)


async def cut_table(nodes: int, apart_s: float, seed: int) -> dict[str, object]:
    """Cut a DHT in two."""
    world = DhtWorld(DhtWorldConfig(nodes=nodes, stale=0.0, seed=seed))
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(node.maintain()) for node in world.nodes]
        running += [tasks.create_task(keep_publishing(n)) for n in world.nodes[::PUBLISHERS]]
        await asyncio.sleep(SETTLE_S)
        calls = sum(node.calls for node in world.nodes)
        world.net.world.partition(
            [node.contact.peer for node in world.nodes[::2] if node.contact.peer]
        )
        await asyncio.sleep(apart_s)
        parted = whole_share(world.nodes)
        calls_apart = sum(node.calls for node in world.nodes) - calls
        world.net.world.heal()
        one_s = await until(lambda: whole_share(world.nodes) == 1.0)
        for task in running:
            task.cancel()
    await world.close()
    return {
        "what": "table",
        "whole_share_parted": parted,
        "seconds": one_s,
        "calls_per_node_and_s_parted": calls_apart / nodes / apart_s,
    }


async def cut_directory(nodes: int, apart_s: float, seed: int) -> dict[str, object]:
    """Cut a run in two."""
    async with asyncio.TaskGroup() as tasks:
        world = GossipWorld(GossipWorldConfig(members=nodes, seed=seed), tasks)
        for member in world.members:
            world.join(member, [world.members[0].rpc.contact])
        together_s = await until(lambda: world.one)
        world.partition(world.members[::2])
        await asyncio.sleep(apart_s)
        parted = sum(len(member.sees) for member in world.members) / nodes**2
        world.net.world.heal()
        one_s = await until(lambda: world.one)
        world.close()
    return {
        "what": "directory",
        "seconds_from_start": together_s,
        "seen_share_parted": parted,
        "seconds": one_s,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print and write; 1 if something was not one again within 30 s."""
    parser = command_line(__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--apart-s", type=float, nargs="+", default=[60.0, 600.0])
    parser.add_argument("--only", choices=["dht", "directory"])
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    worlds = {"dht": cut_table, "directory": cut_directory}
    rows = []
    for apart_s in options.apart_s:
        for name, play in worlds.items():
            if options.only not in (None, name):
                continue
            begun_s = time.perf_counter()
            row = run(play(options.nodes, apart_s, options.seed), options.seed)
            row |= {"nodes": options.nodes, "apart_s": apart_s, "seed": options.seed}
            row["wall_s"] = time.perf_counter() - begun_s
            rows.append(row)
            print(
                f"{options.nodes} nodes, 50/50 for {apart_s:g} s: one {row['what']} again", end=""
            )
            print(f" after {row['seconds']} s")
            write_json(options.json, rows)
    return int(any(row["seconds"] is None or row["seconds"] > 30 for row in rows))


if __name__ == "__main__":
    sys.exit(main())
