"""Servers that join while steps pass, in virtual time: they catch up, and keep their place."""

import pytest
from sim.seed import SEED

from p2pswarm.progress.events import Report
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import MemberJoined, MemberLost

FIVE_REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.5), (0.1, 0.9), (0.9, 0.9))
STEP_S = 2.0  # about what a step of these runs takes


def latecomers(seed: int, *, state_bytes: int) -> list[Report]:
    """The reports of a run in which servers join at many points of a step."""
    pauses_s = tuple(STEP_S * (0.35 + 0.07 * ((seed + number) % 10)) for number in range(8))
    config = SwarmConfig(
        seed=seed,
        run=small_run(steps=14),
        regions=FIVE_REGIONS,
        latecomers_s=pauses_s,
        cost=Cost(state_bytes=state_bytes),
    )
    swarm = SimSwarm(config)
    result = run(swarm.play(), seed)
    assert result.steps == 14
    return swarm.reports


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
@pytest.mark.parametrize("state_bytes", [1 << 16, 4 << 20])
def test_newcomer_is_not_held_to_a_commit_whose_reduction_is_still_on_its_way(
    seed: int, state_bytes: int
) -> None:
    """The commit is a few bytes and the reduction many: it overtakes what it commits."""
    reports = latecomers(seed, state_bytes=state_bytes)

    assert [report for report in reports if isinstance(report, MemberLost)] == []
    joined = sum(isinstance(report, MemberJoined) for report in reports)
    assert joined == 6 + 8
