"""Rebalancing under preemption, after the table of SWARM Parallelism: shares of the optimum.

`--table rebalancing`; the model is that of `fluid_swarm.py`: rates and moves,
no single microbatches, the shipped rules.

The optimum is what the servers that are there could do if each stood where it helps most and moving
cost nothing (sim/day_record.py). `ceiling` is what a rule could do at best for which moves cost
nothing but the time until the weights have come, and which reacts at once. It does not know who
dies next; it is no proof, because who stands otherwise can be lucky about that.

The published shares are of the paper's own trace, of T4s over 32 hours, which is not public;
aws_g4dn has the same processors. What it charged for moves is not known here, so there are three
settings: 1 GiB and 4 GiB of state a stage over 500 Mbit/s, where movers fetch before they leave,
and 4 GiB where they leave first. A rule has the same conditions as the others in its setting.
"""

import statistics
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from papers.fluid_swarm import Fleet, FluidConfig, FluidSwarm, Totals, ceiling

from p2pswarm.settings.config import BalanceConfig
from p2pswarm.sim.traces import HOUR_S, Trace, stays, trace_of

STAGES = 4
SPREAD = 0.1  # of the speeds of machines that are sold as the same
TRACES = ("aws_g4dn", "aws_p3")
SEEDS = 10
POLICIES = {
    "none": BalanceConfig(rule="off"),
    "swarm T=300": BalanceConfig(rule="swarm", every_s=300.0),
    "swarm T=60": BalanceConfig(rule="swarm", every_s=60.0),
    "priced": BalanceConfig(rule="priced"),
}
PUBLISHED = {"none": 0.827, "swarm T=300": 0.958}
SOURCE = "SWARM Parallelism (ICML 2023), its own trace; second-hand: not read in the paper"
LINK_BYTES_PER_S = 62.5e6  # 500 Mbit/s, as the paper's machines have


@dataclass(frozen=True, slots=True)
class Setting:
    """What a move costs."""

    name: str
    state_bytes: int
    fetch_first: bool


SETTINGS = (
    Setting("1 GiB, fetches first", 1 << 30, fetch_first=True),
    Setting("4 GiB, fetches first", 4 << 30, fetch_first=True),
    Setting("4 GiB, leaves first", 4 << 30, fetch_first=False),
)


def fleet_of(name: str, trace: Trace, seed: int) -> Fleet:
    """The machines of one seed: who is how fast, and who is taken."""
    rng = Random(f"{name} {seed}")
    speeds = tuple(rng.lognormvariate(0.0, SPREAD) for _ in range(trace.most))
    found = stays(trace, trace.most, trace.seconds / HOUR_S, rng)
    return Fleet(speeds, tuple(found), trace.seconds)


@lru_cache(maxsize=256)
def _ceiling(fleet: Fleet, late_s: float) -> float:
    return ceiling(fleet, late_s, STAGES)


def played(fleet: Fleet, policy: str, setting: Setting) -> dict[str, float]:
    """One fleet under one rule: shares of the optimum over all, the first and the last hour."""
    config = FluidConfig(
        balance=POLICIES[policy],
        stages=STAGES,
        state_bytes=setting.state_bytes,
        link_bytes_per_s=LINK_BYTES_PER_S,
        fetch_first=setting.fetch_first,
    )
    swarm = FluidSwarm(config, fleet.speeds)
    seconds = fleet.seconds
    edges = sorted({0.0, min(HOUR_S, seconds), max(0.0, seconds - HOUR_S), seconds})
    spans = swarm.play(fleet.stays, seconds, edges)
    whole = Totals(sum(t.possible for t in spans), sum(t.done for t in spans))
    for span in spans:
        whole.losses.update(span.losses)
    return {
        "all": _share(whole),
        "first_hour": _share(spans[0]),
        "last_hour": _share(spans[-1]),
        "moves": swarm.moves,
        "stages_lost": swarm.lost_stages,
        "ceiling": _ceiling(fleet, config.state_bytes / config.link_bytes_per_s + 5.0),
        **{f"lost: {why}": much / whole.possible for why, much in whole.losses.items()},
    }


def _share(total: Totals) -> float:
    return total.done / total.possible if total.possible else 0.0


def table(traces: dict[str, Trace] | None = None, seeds: int = SEEDS) -> list[dict[str, object]]:
    """The rows: one for each setting, trace and rule, the means over the seeds."""
    traces = traces or {name: trace_of(name) for name in TRACES}
    found: list[dict[str, object]] = []
    for setting in SETTINGS:
        for name, trace in traces.items():
            fleets = [fleet_of(name, trace, seed) for seed in range(1, seeds + 1)]
            each = {
                policy: [played(fleet, policy, setting) for fleet in fleets] for policy in POLICIES
            }
            for policy, runs in each.items():
                row: dict[str, object] = {"setting": setting.name, "trace": name, "rule": policy}
                for key in sorted({key for run in runs for key in run}, key=_order):
                    row[key] = round(statistics.fmean(run.get(key, 0.0) for run in runs), 4)
                row["each"] = [round(run["all"], 4) for run in runs]
                row["seeds"] = seeds
                if policy == "priced":
                    row["above_swarm_in"] = _above(each)
                row["published"] = PUBLISHED.get(policy)
                row["published_source"] = SOURCE if policy in PUBLISHED else None
                row["model"] = "fluid"
                found.append(row)
                shown = {k: v for k, v in row.items() if k not in ("published_source", "each")}
                print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
    return found


def _order(key: str) -> tuple[bool, str]:
    return key.startswith("lost: "), key


def _above(each: dict[str, list[dict[str, float]]]) -> int:
    """In how many seeds `priced` is above the paper's rule at every T."""
    others = [runs for policy, runs in each.items() if policy.startswith("swarm")]
    best = [max(run["all"] for run in runs) for runs in zip(*others, strict=True)]
    return sum(run["all"] > other for run, other in zip(each["priced"], best, strict=True))
