"""How good plans of irregular networks are, and of a thousand devices, in a given time.

    python bench/placement.py [--networks NAME ...] [--seconds 15] [--seeds 3] [--threads 1]
                              [--json FILE]

`jitter1`, `jitter2`: the worldwide network of DT-FM (8 regions of 8), each pair's rate times a
log-normal number (sigma 0.3), its latency times a uniform one (0.8 to 1.5). `uneven`: ten regions
of 3 to 14 devices; `uneven-cap`: with devices' own lines of 0.2 to 3 Gbit/s. `plane`, `tree`,
`noise`: networks that the search was not made on: devices in a plane, homes behind cities, and
rates without any order. `thousand`: 1,024 devices of 40 of the regions of `skyplane`, 16 stages.

With one thread the time is the processor's (`time.process_time`), so that a busy machine changes
little but the figures' noise; with more it is the clock's. "best known" is the best of all runs.
"""

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, cost_of
from p2pswarm.plan.network import DeviceNetwork
from p2pswarm.plan.search import Effort, search

NETWORKS = Path(__file__).with_name("dtfm_networks.json")
ACTIVATION_GBIT = 0.47124922275543213 * 8
TASK = DtfmTask(stages=8, pipelines=8, gradient_gbit=5.2, activation_gbit=ACTIVATION_GBIT)
THOUSAND = DtfmTask(stages=16, pipelines=64, gradient_gbit=5.2, activation_gbit=ACTIVATION_GBIT)
RANDOM_PLANS = 100_000
EIGHT = [0, 1, 2, 3, 4, 7, 8, 9]  # the regions of the worldwide case, among the ten
UNEVEN = (14, 4, 9, 6, 3, 8, 5, 7, 3, 5)
NAMES = ("jitter1", "jitter2", "uneven", "uneven-cap", "plane", "tree", "noise", "thousand")


def aws() -> tuple[np.ndarray, np.ndarray]:
    """Latency (s) and rate (Gbit/s) of the ten regions, 5 ms and 2 Gbit/s within one."""
    regions = json.loads(NETWORKS.read_text())["all_10_regions"]
    latency_rr = np.array(regions["latency_ms"], dtype=float) / 1e3
    gbps_rr = np.array(regions["bandwidth_gbps"], dtype=float)
    np.fill_diagonal(latency_rr, 5e-3)
    np.fill_diagonal(gbps_rr, 2.0)
    return latency_rr, gbps_rr


def spread(
    region_n: np.ndarray, latency_rr: np.ndarray, gbps_rr: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    pick = np.ix_(region_n, region_n)
    return latency_rr[pick], gbps_rr[pick]


def jittered(
    latency_nn: np.ndarray, gbps_nn: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each pair a number of its own, the same both ways."""
    chance = np.random.default_rng(seed)
    n = len(gbps_nn)
    rates = np.triu(np.exp(chance.normal(0.0, 0.3, (n, n))), 1)
    delays = np.triu(chance.uniform(0.8, 1.5, (n, n)), 1)
    return latency_nn * (delays + delays.T), gbps_nn * (rates + rates.T)


def network_of(name: str) -> tuple[DtfmTask, DeviceNetwork]:
    """A network by its name."""
    latency_rr, gbps_rr = aws()
    chance = np.random.default_rng(sum(map(ord, name)))
    task, access = TASK, None
    if name.startswith("jitter"):
        region_n = np.repeat(EIGHT, 8)
        latency, gbps = jittered(*spread(region_n, latency_rr, gbps_rr), int(name[-1]))
    elif name.startswith("uneven"):
        latency, gbps = spread(np.repeat(range(10), UNEVEN), latency_rr, gbps_rr)
        if name == "uneven-cap":
            access = chance.choice([0.2, 0.4, 0.8, 1.5, 3.0], 64).tolist()
    elif name == "plane":
        place = chance.uniform(0.0, 1.0, (64, 2))
        far = np.hypot(*(place[:, None] - place[None]).transpose(2, 0, 1))
        latency, gbps = 0.005 + 0.15 * far, 2.0 / (1 + 6 * far)
    elif name == "tree":
        city_n, line_n = chance.integers(0, 12, 64), chance.choice([0.1, 0.3, 1.0, 2.0], 64)
        between = chance.uniform(0.2, 1.5, (12, 12))
        gbps = np.where(
            city_n[:, None] == city_n, 3.0, np.minimum(between, between.T)[city_n][:, city_n]
        )
        latency, access = np.where(city_n[:, None] == city_n, 0.004, 0.06), line_n.tolist()
    elif name == "noise":
        rates = np.triu(np.exp(chance.normal(-0.5, 0.7, (64, 64))), 1)
        latency, gbps = np.full((64, 64), 0.05), rates + rates.T
    else:
        task = THOUSAND
        region_n = np.sort(chance.integers(0, 10, 1024))
        latency, gbps = jittered(*spread(region_n, latency_rr, gbps_rr), 7)
        access = chance.choice([0.5, 1.0, 2.0, 4.0], 1024).tolist()
    np.fill_diagonal(latency, 0.0)
    np.fill_diagonal(gbps, 1.0)
    return task, DeviceNetwork.read(latency.tolist(), gbps.tolist(), access)


def best_of_chance(costs: LinkCosts, task: DtfmTask, count: int) -> float:
    """The best of random plans, with the pairing by chance as well: 100,000 in reasonable time."""
    chance = np.random.default_rng(1)
    n = task.stages * task.pipelines
    best = []
    for _ in range(count):
        rows = chance.permutation(n).reshape(task.stages, task.pipelines)
        data_s = max(costs.data_s_nn[np.ix_(row, row)].sum(axis=1).max() for row in rows)
        least_s = sum(
            max(costs.pipeline_s_nn[np.ix_(one, other)].min(axis=axis).max() for axis in (0, 1))
            for one, other in pairwise(rows)
        )
        best.append((data_s + least_s, rows))
    best.sort(key=lambda each: each[0])
    least = float("inf")
    for bound_s, rows in best:  # no plan costs less than its bound: stop when none can be better
        if bound_s >= least:
            break
        least = min(least, cost_of(costs, tuple(tuple(map(int, row)) for row in rows)).seconds)
    return least


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--seconds", type=float, help="default: 15, thousand: 60")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--chance", type=int, default=0, help="random plans to compare with")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    clock = time.process_time if flags.threads == 1 else time.monotonic
    rows = []
    for name in flags.networks:
        task, network = network_of(name)
        costs = LinkCosts.of(network, task)
        seconds = flags.seconds or (60.0 if name == "thousand" else 15.0)
        for seed in range(1, flags.seeds + 1):
            begun_s, busy_s = time.monotonic(), time.process_time()
            found = search(costs, task, Effort(seconds, seed, clock, flags.threads))
            rows.append(
                {
                    "network": name,
                    "seed": seed,
                    "cost_s": round(found.seconds, 3),
                    "lower_bound_s": round(found.lower_bound_s, 3),
                    "above": round(found.seconds / found.lower_bound_s - 1, 3),
                    "moves": found.evaluations,
                    "seconds": round(time.monotonic() - begun_s, 1),
                    "processor_s": round(time.process_time() - busy_s, 1),
                }
            )
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
        if flags.chance:
            least_s = best_of_chance(costs, task, flags.chance)
            print(f"{name}: best of {flags.chance} by chance {least_s:.3f}")
    if flags.json:
        flags.json.write_text(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
