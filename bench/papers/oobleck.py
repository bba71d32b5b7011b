"""Oobleck's grid with our row: samples of a fleet that is preempted, over what it could do.

`--table oobleck`. Theirs: what the simulators of their artifact make of Oobleck
and of Varuna on their traces, each over that system's own fault-free speed with the nodes that were
there (`oobleck.json`). The artifact was run, not their machines; the division is not the paper's.

Ours is the fluid model (`fluid_swarm.py`) on their tables: n nodes that stand as well as they can
do what their table has for n nodes, and of that ours do the share of their rates. Nodes are alike;
which one is taken is chance. What is charged to us, without a warning before a kill:

* a newcomer computes nothing until its stage's state has come: weights and two moments, 12 bytes a
  parameter, over 10 and over 1 Gbit/s, and 5 s; a mover serves its old stage until then, if its 48
  GB hold both stages, and else leaves first
* after a death the run stands for 3.6 s (bench/silent_host.py), and what the dead node has summed
  in this step is done again by what is left of its stage; a step takes what it takes with 24 nodes
* a stage that has lost its last weights costs 5 minutes (checkpoints each ten), and the load

Rows with `ships` false are of a thing that is not built (docs/recovery.md, "Copies of sums"): each
server gives a mate a copy of its sum, over half of its line at most.

`own` is the share of what the present nodes could do at our own fault-free speed with so many,
`linear` that of n times one node's speed: the thirtieth of what 30 do.
"""

import json
import statistics
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from papers.fluid_swarm import FluidConfig, FluidSwarm

from p2pswarm.plan.arrangement import ENGINE_BYTES_PER_STATE_BYTE, HELD_BYTES_PER_STATE_BYTE
from p2pswarm.settings.config import BalanceConfig
from p2pswarm.sim.traces import HOUR_S, Trace, stays

FACTS = Path(__file__).with_name("oobleck.json")
SOURCE = "Oobleck (SOSP 2023), its artifact's simulators, run with its tables and traces"
PARAMETERS = {
    "BERT-large": 0.34e9,
    "GPT-3-medium": 0.35e9,
    "GPT-3-2_7b": 2.7e9,
    "GPT-3-6_7b": 6.7e9,
}
STAGES = {"BERT-large": 2, "GPT-3-medium": 2, "GPT-3-2_7b": 3, "GPT-3-6_7b": 4}
"""The largest model has as few as a node's memory allows; the others could do with fewer."""
NODE_BYTES = 48e9
STATE_BYTES_A_PARAMETER = 12
GRADIENT_BYTES_A_PARAMETER = 4
COPY_LEAST_S = 15.0  # no oftener than a detection takes some times over
COPIED = ("GPT-3-6_7b",)
LINKS_GBPS = (10.0, 1.0)
NODES, STEP_NODES = 30, 24
SILENT_S, ROLLBACK_S = 3.6, 300.0
REAL = ("gcp", "p3")
SEEDS = 10


@cache
def _facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FACTS.read_text())
    return found


def shipped() -> dict[str, Trace]:
    """Their traces."""
    return {
        name: Trace(tuple((at_s, many) for at_s, many in each["counts"]), each["seconds"], 0.0)
        for name, each in _facts()["traces"].items()
    }


def throughput_of(model: str, most: int) -> tuple[float, ...]:
    """Samples per second by the number of nodes, from 0; above 30 in proportion."""
    table = _facts()["models"][model]["samples_per_s"]
    above = (table[-1] * nodes / NODES for nodes in range(NODES + 1, most + 1))
    return 0.0, *table, *above


def holds_two_stages(model: str) -> bool:
    """Whether a node has the memory for the state of another stage beside its own."""
    state_bytes = PARAMETERS[model] * STATE_BYTES_A_PARAMETER / STAGES[model]
    own_bytes = state_bytes * HELD_BYTES_PER_STATE_BYTE
    return own_bytes + state_bytes * ENGINE_BYTES_PER_STATE_BYTE < NODE_BYTES


def copies_of(model: str, gbps: float) -> tuple[float, float]:
    """How often a node copies its sum to a mate, and how long that takes."""
    takes_s = PARAMETERS[model] / STAGES[model] * GRADIENT_BYTES_A_PARAMETER * 8 / (gbps * 1e9)
    return max(COPY_LEAST_S, 2 * takes_s), takes_s


def played(
    model: str, trace: Trace, seed: int, gbps: float, *, copies: bool = False
) -> dict[str, float]:
    """One trace, one model, one order in which nodes are taken."""
    throughput = throughput_of(model, trace.most)
    stages = STAGES[model]
    samples = _facts()["models"][model]["samples_per_step"]
    config = FluidConfig(
        balance=BalanceConfig(),
        stages=stages,
        commit_s=samples / throughput[STEP_NODES],
        state_bytes=round(PARAMETERS[model] * STATE_BYTES_A_PARAMETER / stages),
        link_bytes_per_s=gbps * 1e9 / 8,
        fetch_first=holds_two_stages(model),
        silent_s=SILENT_S,
        redo=True,
        copies=copies_of(model, gbps) if copies else None,
        rollback_s=ROLLBACK_S,
        throughput=throughput,
    )
    found = stays(trace, trace.most, trace.seconds / HOUR_S, Random(f"{model} {seed}"))
    swarm = FluidSwarm(config, (1.0,) * trace.most)
    (total,) = swarm.play(found, trace.seconds, [0.0, trace.seconds])
    per_node = throughput[NODES] / NODES
    possible = total.possible or float("inf")  # their table has nothing for so few nodes
    return {
        "own": total.done / possible,
        "linear": total.done / (total.machine_s * per_node),
        "samples": total.done,
        "moves": swarm.moves,
        "stages_lost": swarm.lost_stages,
        **{f"lost: {why}": much / possible for why, much in total.losses.items()},
    }


def table(traces: dict[str, Trace] | None = None, seeds: int = SEEDS) -> list[dict[str, object]]:
    """The rows: one for each model, trace and link, the means over the seeds."""
    rows: list[dict[str, object]] = []
    for model in PARAMETERS:
        for name, trace in (traces or shipped()).items():
            theirs = {} if traces else _facts()["share_of_possible"][model][name]
            ways = [(gbps, ships) for gbps in LINKS_GBPS for ships in (True, False)]
            for gbps, ships in ways:
                if not ships and (traces or model not in COPIED):
                    continue
                runs = [
                    played(model, trace, seed, gbps, copies=not ships)
                    for seed in range(1, seeds + 1)
                ]
                row: dict[str, object] = {"model": model, "trace": name, "link_gbps": gbps}
                row["ships"] = ships
                for key in dict.fromkeys(key for run in runs for key in run):
                    row[key] = round(statistics.fmean(run.get(key, 0.0) for run in runs), 4)
                row |= {
                    "least": round(min(run["own"] for run in runs), 4),
                    "stages": STAGES[model],
                    "seeds": seeds,
                    "published_oobleck": theirs.get("oobleck"),
                    "published_varuna": theirs.get("varuna"),
                    "published_source": SOURCE if theirs else None,
                    "model_of_ours": "fluid",
                }
                rows.append(row)
                shown = {k: v for k, v in row.items() if k != "published_source"}
                print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
    return rows
