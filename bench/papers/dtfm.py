"""DT-FM's own five networks, their genetic algorithm beside ours, and their 27 logged runs.

`--table dtfm`; see its page for what "their search" is.

The log: seconds an iteration of GPT3-XL with 24, 32 and 40 layers and 1,024, 2,048 and 4,096
sequences, their system with its placement, means of three seeds (Decentralized_FM_alpha,
results/NeurIPS2022_submission.md). The model is what their program does (`dtfm_program.py`), and
has no number that was fitted to these rows. Beside it, `formula`: averaging by the paper's formula,
the rate of computing from Case 1 (`CASE_1_TFLOPS`), the slowest link by the plan that their search
returns, where every pipeline stays in its region. `WITHOUT` says what each part is worth. The same
model is held against the log's 81 rows with ranks by chance.
"""

import itertools
import json
import time
from pathlib import Path

import numpy as np
from papers.dtfm_program import LoggedRun, Parts, as_run, iteration_s, layer_s, shuffled
from papers.genetic import TRIALS, evolve

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, cost_of
from p2pswarm.plan.dtfm_search import SearchBudget, search
from p2pswarm.plan.network import DeviceNetwork

NETWORKS = Path(__file__).with_name("dtfm_networks.json")
MEASURED = Path(__file__).with_name("dtfm_measured.json")
ACTIVATION_GBIT = 0.47124922275543213 * 8
GRADIENT_GBIT = 5.2  # of 3 layers of 24, float32
TASK = DtfmTask(stages=8, pipelines=8, gradient_gbit=GRADIENT_GBIT, activation_gbit=ACTIVATION_GBIT)
THEIR_SEARCH_S = (3.4398, 49.5039, 16.0868, 34.8020, 49.2184)
CASE_1_HOSTS = np.arange(64) // 8
CASE_2_HOSTS = np.concatenate([np.arange(32) // 4, 8 + np.arange(32)])
CASE_1_TFLOPS = 44.8  # of a device: 24 layers, 4,096 sequences in 33.05 s
SEQUENCE_GBIT = 2048 * 2048 * 2 * 8 / 1e9  # activations of a sequence in fp16
SEEDS = (2022, 2023, 2024)
LAYERS, BATCHES = (24, 32, 40), (1024, 2048, 4096)
WITHOUT = {
    "filling": Parts(fills=False),
    "barriers": Parts(barriers=False),
    "the embedding": Parts(embedding=False),
    "fp16 (float32)": Parts(gradient_bits=32),
}


def network_of(number: int, case: dict[str, object]) -> DeviceNetwork:
    """A case as the authors' scheduler builds it."""
    if "latency_ms" in case:
        region_n = np.repeat(range(len(case["regions"])), case["devices_per_region"])
        pick = np.ix_(region_n, region_n)
        latency_s_nn = np.array(case["latency_ms"], dtype=float)[pick] / 1e3
        gbps_nn = np.array(case["bandwidth_gbps"], dtype=float)[pick]
    else:
        host_n = CASE_1_HOSTS if number == 1 else CASE_2_HOSTS
        within, between = (
            case[f"{where}_instance"]["bandwidth_gbps"] for where in ("intra", "inter")
        )
        gbps_nn = np.where(host_n[:, None] == host_n, within, between)
        latency_s_nn = np.zeros_like(gbps_nn)
    return DeviceNetwork.read(latency_s_nn.tolist(), gbps_nn.tolist())


def cases() -> dict[str, DeviceNetwork]:
    """The five networks by their names."""
    found = json.loads(NETWORKS.read_text())["cases"]
    return {name: network_of(number, case) for number, (name, case) in enumerate(found.items(), 1)}


def searches(seconds: float, trials: int) -> list[dict[str, object]]:
    """Their genetic algorithm, published and as it runs here, and our search: a row each case."""
    rows = []
    for published_s, (name, network) in zip(THEIR_SEARCH_S, cases().items(), strict=True):
        costs = LinkCosts.of(network, TASK)
        begun_s, used_s = time.monotonic(), time.process_time()
        found = search(costs, TASK, SearchBudget(seconds, 0, time.monotonic))
        took_s, processor_s = time.monotonic() - begun_s, time.process_time() - used_s
        row = {
            "case": name,
            "their_search_s": published_s,
            "ours_s": round(found.seconds, 4),
            "lower_bound_s": round(found.lower_bound_s, 4),
            "proven": found.proven,
            "took_s": round(took_s, 2),
            "processor_s": round(processor_s, 2),
        }
        if trials:
            used_s = time.process_time()
            evolved = evolve(costs, TASK, 0, trials=trials)
            row["genetic_s"] = round(evolved.seconds, 4)
            row["genetic_evaluations"] = evolved.evaluations
            row["genetic_processor_s"] = round(time.process_time() - used_s, 1)
        rows.append(row)
        print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(f"all took {sum(row['took_s'] for row in rows):.1f} s")
    return rows


def logged() -> list[dict[str, object]]:
    """The 27 rows: measured, modelled, and by how much the model is off."""
    petaflop = json.loads(MEASURED.read_text())["pflop_per_iteration"]
    seen_s = measured()
    more_s = layer_s({(layers, batch): s for (n, layers, batch), s in seen_s.items() if n == 1})
    rows = []
    for number, network in enumerate(cases().values(), 1):
        if number < 3:
            continue
        lines = as_run(number, (network.latency_s_nn, network.gbps_nn))
        for layers in LAYERS:
            work = petaflop[f"L{layers}"][0] * 1e15 / BATCHES[0]
            for batch in BATCHES:
                row = {"case": number, "layers": layers, "sequences": batch}
                run = LoggedRun(number, layers, batch)
                modelled_s = iteration_s(run, lines, more_s)
                seen = seen_s[number, layers, batch]
                row |= {"measured_s": round(seen, 2), "modelled_s": round(modelled_s, 2)}
                row["error"] = round(modelled_s / seen - 1, 4)
                row["formula"] = round(by_formula_s(network, layers, batch, work) / seen - 1, 4)
                for name, parts in WITHOUT.items():
                    less_s = iteration_s(run, lines, more_s, parts)
                    row[f"without {name}"] = round(less_s / seen - 1, 4)
                rows.append(row)
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items() if "without" not in key))
    for number in (3, 4, 5):
        _say(f"case {number}", [row["error"] for row in rows if row["case"] == number])
    for key in ("formula", *(f"without {name}" for name in WITHOUT), "error"):
        _say(f"27 rows, {key}", [row[key] for row in rows])
    return rows


def by_chance() -> None:
    """The 81 rows whose ranks were shuffled: nothing of them was used to make the model."""
    found = json.loads(MEASURED.read_text())["cases"]
    seen_s = measured()
    more_s = layer_s({(layers, batch): s for (n, layers, batch), s in seen_s.items() if n == 1})
    errors: list[float] = []
    for number, network in enumerate(cases().values(), 1):
        if number < 3:
            continue
        delay_s_nn, gbps_nn = as_run(number, (network.latency_s_nn, network.gbps_nn))
        for place, seed in enumerate(SEEDS):
            ranks = np.ix_(shuffled(seed), shuffled(seed))
            lines = delay_s_nn[ranks], gbps_nn[ranks]
            for layers, batch in itertools.product(LAYERS, BATCHES):
                row = found[f"case{number}"][f"L{layers}_B{batch}"]["Ours-random"]
                modelled_s = iteration_s(LoggedRun(number, layers, batch), lines, more_s)
                errors.append(modelled_s / row[place] - 1)
        _say(f"by chance, case {number}", errors[-27:])
    _say("by chance, 81 rows", errors)


def measured() -> dict[tuple[int, int, int], float]:
    """Their system with its placement, by case, layers and sequences: the mean of three seeds."""
    found = json.loads(MEASURED.read_text())["cases"]
    return {
        (number, layers, batch): float(
            np.mean(found[f"case{number}"][f"L{layers}_B{batch}"]["Ours-sched"])
        )
        for number in (1, 3, 4, 5)
        for layers in LAYERS
        for batch in BATCHES
    }


def by_formula_s(network: DeviceNetwork, layers: int, sequences: int, work: float) -> float:
    """Averaging by the paper's formula, and each microbatch serial at the slowest link."""
    task = DtfmTask(8, 8, GRADIENT_GBIT * layers / 24, ACTIVATION_GBIT)
    slowest_gbps = float(np.sort(network.gbps_nn, axis=1)[:, -2].min())
    averaging_s = cost_of(LinkCosts.of(network, task), by_region(network)).data_s
    computing_s = work / TASK.stages / (CASE_1_TFLOPS * 1e12)
    hop_s = SEQUENCE_GBIT / slowest_gbps
    # A device computes, or sends, or receives, one after the other.
    return averaging_s + sequences // TASK.pipelines * (2 * hop_s + computing_s)


def _say(what: str, errors: list[float]) -> None:
    off = np.abs(errors)
    print(f"{what}: mean {100 * off.mean():.1f} %, worst {100 * off.max():.1f} %")


def by_region(network: DeviceNetwork) -> tuple[tuple[int, ...], ...]:
    """The plan that their search returns: every pipeline stays in its region."""
    stages, n = TASK.stages, network.devices
    return tuple(tuple(range(stage, n, stages)) for stage in range(stages))


def table(seconds: float, *, genetic: bool) -> list[dict[str, object]]:
    """Everything that is printed for `--table dtfm`."""
    rows = [*searches(seconds, TRIALS if genetic else 0), *logged()]
    by_chance()
    return rows
