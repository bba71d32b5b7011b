"""Processors that drift, and machines in regions: speeds around their mean, links as measured."""

import itertools
import random
import statistics

import pytest
from sim.seed import SEED

from p2pswarm.plan.network import shipped_network
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.devices import SimDevice, SpeedDrift
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run

AWS = shipped_network("aws")


def test_a_speed_that_does_not_drift_is_its_mean():
    speed = SpeedDrift(2.0, 0.0, random.Random(1))

    assert [speed.at(now_s) for now_s in (0.0, 1.0, 1e6)] == [2.0] * 3


def test_a_drifting_speed_stays_around_its_mean_and_moves_slowly():
    drift = SpeedDrift(2.0, 0.2, random.Random(SEED))
    speeds = [drift.at(60.0 * minute) for minute in range(20_000)]

    assert statistics.median(speeds) == pytest.approx(2.0, rel=0.05)
    changes = [abs(b / a - 1) for a, b in itertools.pairwise(speeds)]
    assert statistics.fmean(changes) < 0.1 < max(abs(one / 2 - 1) for one in speeds)


def test_asking_twice_at_one_time_gives_one_speed():
    drift = SpeedDrift(1.0, 0.5, random.Random(SEED))

    assert drift.at(5.0) == drift.at(5.0) == drift.at(4.0)


def test_devices_serve_the_stages_that_they_were_given_with_their_speeds():
    devices = tuple(SimDevice(speed=speed, stage=stage) for stage in (0, 1) for speed in (1.0, 3.0))
    config = SwarmConfig(
        run=small_run(stages=2, steps=4, batch=BatchConfig(microbatches=64, rows=1)),
        servers=4,
        devices=devices,
        cost=Cost(forward_s=0.5),
    )
    swarm = SimSwarm(config)
    result = run(swarm.play(), SEED)

    assert not result.ended.failed
    assert [machine.server.stage for machine in swarm.machines] == [0, 0, 1, 1]
    begun = [machine.processor.busy_s * machine.processor.speed for machine in swarm.machines]
    assert 2.0 < begun[1] / begun[0] < 4.5
    assert 2.0 < begun[3] / begun[2] < 4.5


@pytest.mark.full
def test_drift_changes_the_times_and_loses_nothing():
    def seconds(drift: float) -> float:
        devices = tuple(SimDevice(drift=drift) for _ in range(6))
        config = SwarmConfig(seed=SEED, devices=devices, cost=Cost(forward_s=0.5))
        result = run(SimSwarm(config).play(), SEED)
        assert result.steps == config.run.steps
        return result.seconds

    assert seconds(0.4) != pytest.approx(seconds(0.0), rel=0.01)


def test_servers_far_apart_take_the_time_of_their_regions_links():
    """One microbatch at a time crosses Tokyo and Ireland, there and back, and nothing overlaps."""
    network = AWS.only(["Tokyo", "Ireland"])
    model = ModelConfig(d_model=64, layers=4, heads=4, sequence_length=512)
    config = SwarmConfig(
        run=small_run(
            stages=2,
            steps=2,
            min_replicas=1,
            model=model,
            batch=BatchConfig(microbatches=4, rows=8, window=1, evaluate_every=0),
        ),
        servers=2,
        devices=(SimDevice(place=0, stage=0), SimDevice(place=1, stage=1)),
        trainer_place=0,
        cost=Cost(forward_s=0.1),
        world=WorldConfig(network=network),
    )
    result = run(SimSwarm(config).play(), SEED)

    way_s = network.rtt_s[0][1] / 2
    crossing_s = 8 * 512 * 64 * 2 / (network.gbps[0][1] * 125e6)  # bf16
    least_s = 2 * (4 * (0.6 + 2 * way_s + 2 * crossing_s))
    assert result.seconds > least_s
    assert result.seconds < least_s + 2 * 4 * 12 * way_s, "some messages ask before they send"


def test_a_gradient_of_true_size_takes_its_time_in_averaging():
    def seconds(gradient_bytes: int) -> float:
        config = SwarmConfig(
            seed=SEED,
            run=small_run(stages=1, steps=3),
            servers=2,
            cost=Cost(forward_s=0.01, gradient_bytes=gradient_bytes),
            world=WorldConfig(bandwidth_bytes_per_s=1e6),
        )
        return run(SimSwarm(config).play(), SEED).seconds

    more_s = (seconds(4_000_000) - seconds(0)) / 3

    assert more_s == pytest.approx(4.0, rel=0.25), "half of it is reduced by each, and sent back"


def test_stages_have_the_shares_that_the_cost_gives_them():
    cost = Cost(forward_s=1.0, state_bytes=100, gradient_bytes=10, shares=(0.5, 1.5))

    assert [cost.of(stage).forward_s for stage in (0, 1)] == [0.5, 1.5]
    assert [cost.of(stage).state_bytes for stage in (0, 1)] == [50, 150]


@pytest.mark.full
def test_bytes_that_stand_for_more_take_as_long_as_all_of_them():
    def seconds(scale: float, d_model: int) -> float:
        model = ModelConfig(d_model=d_model, layers=4, heads=4, sequence_length=128)
        config = SwarmConfig(
            run=small_run(model=model, codecs=small_run().codecs),
            cost=Cost(state_bytes=round(1_048_576 / scale)),
            world=WorldConfig(bandwidth_bytes_per_s=1e6, bulk_scale=scale),
        )
        return run(SimSwarm(config).play(), SEED).seconds

    assert seconds(4.0, 64) == pytest.approx(seconds(1.0, 256), rel=0.05)
