"""Rebalancing under preemption, after the table of SWARM Parallelism: shares of the optimum.

    python bench/paper_rebalancing.py [--traces aws_g4dn aws_p3] [--seeds 10] [--json FILE]

A fluid model: a stage does the microbatches of all its servers together, the run those of its
slowest stage, and there are no single microbatches. The rules are the shipped ones
(plan/rebalancing.py): which stage a newcomer gets, who moves and when, asked after each commit.
A server that joins or moves does nothing until its weights have come: what the rule itself
estimates for its link. A stage that has lost all its servers gets one of the richest stage, which
reads the stage's checkpoint for as long, whatever the rule is. Queues, which the paper's rule goes
by, are those of a closed network at the present rates: u / (1 - u) at a stage that is busy a share
u of the time, and the whole window at the slowest.

The optimum is what the servers that are there could do if each stood where it helps most and moving
cost nothing (sim/oracle.py). The published shares are of the paper's own trace, of T4s over 32
hours, which is not public; aws_g4dn has the same processors.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from p2pswarm.config import BalanceConfig
from p2pswarm.plan.arrangement import Arrangement, StagedServer, deaths_per_s
from p2pswarm.plan.rebalancing import Rebalancing
from p2pswarm.sim.oracle import best_rate
from p2pswarm.sim.traces import HOUR_S, shipped_traces, stays, trace_of

STAGES = 4
COMMIT_S = 30.0
STATE_BYTES = 4 << 30
LINK_BYTES_PER_S = 62.5e6  # 500 Mbit/s, as the paper's machines have
WINDOW = 64  # microbatches under way
SPREAD = 0.1  # of the speeds of machines that are sold as the same
POLICIES = {
    "none": BalanceConfig(rule="off"),
    "swarm T=300": BalanceConfig(rule="swarm", every_s=300.0),
    "swarm T=60": BalanceConfig(rule="swarm", every_s=60.0),
    "priced": BalanceConfig(rule="priced"),
}
PUBLISHED = {"none": 0.827, "swarm T=300": 0.958}
SOURCE = "SWARM Parallelism (ICML 2023), its own trace; second-hand: not read in the paper"


@dataclass(slots=True)
class _Fluid:
    """One fleet under one rule."""

    rule: Rebalancing
    servers: dict[int, StagedServer] = field(default_factory=dict)
    ready_s: dict[int, float] = field(default_factory=dict)
    moves: int = 0
    lost_stages: int = 0
    deaths: int = 0
    server_s: float = 0.0

    def arrangement(self, now_s: float) -> Arrangement:
        """What the coordinator knows."""
        ready = {one: now_s >= at_s for one, at_s in self.ready_s.items()}
        there = [replace(each, ready=ready[one]) for one, each in sorted(self.servers.items())]
        rates = [sum(e.speed or 0.0 for e in there if e.ready and e.stage == s) for s in STAGE_IDS]
        slowest = min(rates)
        queued = [
            WINDOW if rate <= slowest else min(WINDOW, slowest / (rate - slowest)) for rate in rates
        ]
        return Arrangement(
            stages=STAGES,
            servers=tuple(
                replace(e, queued=round(queued[e.stage] * (e.speed or 0.0) / rates[e.stage]))
                if e.ready
                else e
                for e in there
            ),
            costs=(1.0,) * STAGES,
            state_bytes=(STATE_BYTES,) * STAGES,
            deaths_per_s=deaths_per_s(self.deaths, self.server_s),
            moving=sum(not one for one in ready.values()),
        )

    def rate(self, now_s: float) -> float:
        """Of the run now."""
        rates = [0.0] * STAGES
        for one, each in self.servers.items():
            if now_s >= self.ready_s[one]:
                rates[each.stage] += each.speed or 0.0
        return min(rates)

    def join(self, one: int, speed: float, now_s: float) -> None:
        """A machine comes."""
        arrangement = self.arrangement(now_s)
        held = {each.stage for each in self.servers.values()}
        empty = [stage for stage in STAGE_IDS if stage not in held]
        stage = empty[0] if empty else self.rule.place(arrangement, list(STAGE_IDS))
        server = StagedServer(
            server=one.to_bytes(32),
            stage=stage,
            speed=speed,
            error=SPREAD / 10,
            link_bytes_per_s=LINK_BYTES_PER_S,
        )
        self._loads(one, server, now_s, arrangement.load_s(server, stage))

    def leave(self, one: int, now_s: float) -> None:
        """A machine is taken; a stage without servers gets one of the richest."""
        self.deaths += 1
        gone = self.servers.pop(one)
        del self.ready_s[one]
        if any(each.stage == gone.stage for each in self.servers.values()):
            return
        self.lost_stages += 1
        counts = [sum(e.stage == s for e in self.servers.values()) for s in STAGE_IDS]
        if max(counts) > 1:
            richest = counts.index(max(counts))
            mover = min(o for o, each in self.servers.items() if each.stage == richest)
            load_s = self.arrangement(now_s).load_s(self.servers[mover], gone.stage)
            moved = replace(self.servers[mover], stage=gone.stage)
            self._loads(mover, moved, now_s, load_s)

    def committed(self, now_s: float) -> None:
        """A step is done: nothing is lost by a move now."""
        self.server_s += COMMIT_S * len(self.servers)
        if self.rate(now_s) <= 0.0:
            return  # no step ends while a stage has nobody
        for move in self.rule.decide(self.arrangement(now_s), now_s).moves:
            one = int.from_bytes(move.server)
            self.moves += 1
            moved = replace(self.servers[one], stage=move.target)
            self._loads(one, moved, now_s, move.away_s)

    def _loads(self, one: int, server: StagedServer, now_s: float, load_s: float) -> None:
        self.servers[one], self.ready_s[one] = server, now_s + load_s


STAGE_IDS = range(STAGES)


def played(trace_name: str, policy: str, seed: int) -> dict[str, float]:
    """One trace under one rule: shares of the optimum over all, the first and the last hour."""
    trace = trace_of(trace_name)
    hours = trace.seconds / HOUR_S
    rng = Random(f"{trace_name} {seed}")
    speeds = [rng.lognormvariate(0.0, SPREAD) for _ in range(trace.most)]
    found = stays(trace, trace.most, hours, rng)
    ends = {stay.end_s: [s for s in found if s.end_s == stay.end_s] for stay in found}
    begins = {stay.begin_s: [s for s in found if s.begin_s == stay.begin_s] for stay in found}
    commits = {COMMIT_S * step for step in range(1, int(trace.seconds / COMMIT_S))}
    fluid = _Fluid(Rebalancing(POLICIES[policy]))
    done: list[tuple[float, float, float]] = []
    moments = sorted(m for m in {*ends, *begins, *commits, 0.0} if m < trace.seconds)
    for place, now_s in enumerate(moments):
        for stay in ends.get(now_s, []):
            fluid.leave(stay.machine, now_s)
        for stay in begins.get(now_s, []):
            fluid.join(stay.machine, speeds[stay.machine], now_s)
        if now_s in commits:
            fluid.committed(now_s)
        until_s = moments[place + 1] if place + 1 < len(moments) else trace.seconds
        best = best_rate([speeds[one] for one in fluid.servers], (1.0,) * STAGES)
        span_s = until_s - now_s
        done.append((now_s, fluid.rate(now_s) * span_s, best * span_s))
    return {
        "all": _share(done, 0.0, trace.seconds),
        "first_hour": _share(done, 0.0, HOUR_S),
        "last_hour": _share(done, trace.seconds - HOUR_S, trace.seconds),
        "moves": fluid.moves,
        "stages_lost": fluid.lost_stages,
    }


def _share(done: list[tuple[float, float, float]], begin_s: float, end_s: float) -> float:
    inside = [(rate, best) for at_s, rate, best in done if begin_s <= at_s < end_s]
    possible = sum(best for _, best in inside)
    return sum(rate for rate, _ in inside) / possible if possible else 0.0


def rows(traces: list[str], seeds: int) -> list[dict[str, object]]:
    """The table: a row for each trace and rule, the means over the seeds."""
    table: list[dict[str, object]] = []
    for trace in traces:
        for policy in POLICIES:
            runs = [played(trace, policy, seed) for seed in range(1, seeds + 1)]
            means = {
                name: round(statistics.fmean(run[name] for run in runs), 4) for name in runs[0]
            }
            row: dict[str, object] = {"trace": trace, "rule": policy, **means, "seeds": seeds}
            row["each"] = [round(run["all"], 4) for run in runs]
            row["published"] = PUBLISHED.get(policy)
            row["published_source"] = SOURCE if policy in PUBLISHED else None
            row["model"] = "fluid"
            table.append(row)
            shown = {name: value for name, value in row.items() if name != "published_source"}
            print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
    return table


def main() -> int:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--traces", nargs="+", choices=shipped_traces(), default=["aws_g4dn", "aws_p3"]
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table = rows(options.traces, options.seeds)
    if options.json:
        options.json.write_text(json.dumps(table, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
