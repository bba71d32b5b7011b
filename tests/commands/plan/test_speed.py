"""The line that limits a plan, by the arithmetic of 70 billion frozen weights over home lines."""

from dataclasses import replace

import numpy as np
import pytest

from p2pswarm.commands.plan.devices import PlanAnswer, as_json, load_of, speed_lines
from p2pswarm.models.model_source import resolved
from p2pswarm.plan.device_file import DeviceFile, PlanOptions, fleet_of
from p2pswarm.plan.pipeline_annealing import Draft
from p2pswarm.plan.pipeline_cost import step_cost
from p2pswarm.plan.pipeline_search import PipelinedPlan
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.parser import from_values

STAGES, TOKENS, TFLOPS = 8, 4096, 60.0
MIDDLE = 3


@pytest.fixture(scope="module")
def run() -> RunConfig:
    large = ModelConfig(
        d_model=8192, layers=80, heads=64, vocabulary=32_000, sequence_length=TOKENS
    )
    batch = BatchConfig(microbatches=16, rows=1)
    adapter = AdapterConfig(rank=16)
    return resolved(
        RunConfig(stages=STAGES, base="nf4", adapter=adapter, model=large, batch=batch, steps=100)
    )


@pytest.fixture(scope="module")
def load(run):
    return load_of(run, PlanOptions())


def answer(run, load, up_mbit: float, price: float = 0.0, spare: int = 0) -> PlanAnswer:
    """Eight homes of which the one in the middle has another uplink; each has a stage."""
    home = {"tflops": TFLOPS, "memory_gib": 24.0, "access_gbps": 1.0, "region": "town"}
    kinds = [home | {"name": f"home-{n}", "price_per_hour": price} for n in range(STAGES + spare)]
    kinds[MIDDLE]["up_gbps"] = up_mbit / 1000
    link = {"between": ["town", "town"], "rtt_ms": 20.0, "gbps": 10.0}
    fleet = fleet_of(from_values(DeviceFile, {"device": kinds, "link": [link]}))
    borders = np.linspace(0, len(load.flops_k), STAGES + 1).astype(np.int64)
    stage_n = np.array([*range(STAGES), *[-1] * spare], dtype=np.int64)
    cost = step_cost(fleet, load, Draft(stage_n, borders))
    plan = PipelinedPlan(
        stages=tuple((stage,) for stage in range(STAGES)),
        borders=tuple(borders.tolist()),
        codec=load.codec,
        lower_bound_s=cost.seconds,
        evaluations=1,
        unused=tuple(range(STAGES, STAGES + spare)),
        cost=cost,
    )
    return PlanAnswer(run, fleet, load, plan, [])


@pytest.mark.parametrize(("mbit", "tokens_per_s"), [(40, 153), (100, 381)])
def test_a_slow_uplink_is_named_with_the_tokens_that_it_lets_through(run, load, mbit, tokens_per_s):
    found = answer(run, load, mbit)

    _, slowest = speed_lines(found)

    # 4,096 tokens of 8,192 values in bfloat16, on and back: 134 MB
    assert load.boundary_bytes * 2 == pytest.approx(134e6, rel=2e-3)
    assert found.tokens_per_s(found.plan.cost.pace_s) == pytest.approx(tokens_per_s, rel=5e-3)
    # four operations a weight and token: no gradient of the weights, of which a stage has an eighth
    weights = 12 * 8192**2 * 80 / STAGES
    due = TFLOPS * 1e12 / (4 * weights)
    computing = found.tokens_per_s(found.plan.cost.computing_pace_s)
    assert 0.7 * due < computing < due  # attention and the ends are work, too
    assert slowest == (
        f"  slowest: home-3's uplink, {mbit} Mbit/s: {tokens_per_s:,} tokens/s; the computing "
        f"would allow {computing:,.0f}, the links {tokens_per_s:,}"
    )


def test_where_lines_carry_everything_the_slowest_processor_is_named(run, load):
    found = answer(run, load, 1000)

    assert "'s computing, 60 TFLOP/s" in found.plan.cost.slowest
    told = as_json(found)
    assert told["slowest"] == found.plan.cost.slowest
    assert told["tokens_per_s"] < told["computing_tokens_per_s"]
    assert (told["price_per_hour"], len(speed_lines(found))) == (None, 2)


def test_a_price_is_of_the_devices_that_are_used(run, load):
    found = answer(run, load, 40, price=0.25, spare=2)

    *_, price = speed_lines(found)

    hours = 100 * 16 * TOKENS / found.speed / 3600
    assert price.startswith("  price: 2.00 an hour, ")
    assert price.endswith(f"{2 * hours:,.2f} for 100 steps in {hours:,.1f} h")


def test_what_is_frozen_takes_its_bytes_and_averages_nothing(run, load):
    whole = load_of(replace(run, adapter=None, base="full"), PlanOptions())

    stage = load.values_k.sum() * load.held_bytes_per_value / STAGES
    assert stage / 2**30 == pytest.approx(4.9, abs=0.5)  # 4.5 bits a weight, and the ends
    averaged = load.averaging_bytes_k.sum() / STAGES
    assert averaged == pytest.approx(84e6, rel=0.05)
    assert whole.averaging_bytes_k.sum() / load.averaging_bytes_k.sum() > 300
    assert load.flops_k[1:-1].sum() / whole.flops_k[1:-1].sum() == pytest.approx(2 / 3, rel=0.01)


def test_a_slow_link_between_two_is_named(run, load):
    found = answer(run, load, 1000)
    links = np.full_like(found.fleet.network.gbps_nn, 10.0)
    links[MIDDLE, MIDDLE + 1] = links[MIDDLE + 1, MIDDLE] = 0.01
    network = replace(found.fleet.network, gbps_nn=links)
    borders = np.array(found.plan.borders, dtype=np.int64)

    cost = step_cost(replace(found.fleet, network=network), load, Draft(np.arange(STAGES), borders))

    assert cost.slowest == "the link of home-3 and home-4, 40 Mbit/s"  # four connections of it
