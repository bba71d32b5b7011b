"""A stage that loses a sum costs its own work again, and not the work of the others."""

import pytest
from core import core_of

from p2pswarm.server.boundary_cache import KEPT_BYTES
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import RunFinished, SumVoided

STAGES, MICROBATCHES, FORWARD_S = 4, 16, 0.2
WORK_S = 3 * FORWARD_S  # a forward, and a backward of twice its time


def done_again_s(seat: int, kept_bytes: int) -> tuple[float, int]:
    """What a death at the end of a step costs all processors; and how much the server had."""
    plan = FaultPlan(1, (Fault(FaultKind.KILL, 0.0, 1e4, (seat,), step=1),))
    config = SwarmConfig(
        run=small_run(
            stages=STAGES,
            steps=3,
            min_replicas=2,
            model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
            batch=BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0),
            codecs=CodecConfig(activation="raw", gradient="raw"),
        ),
        servers=2 * STAGES,
        cost=Cost(forward_s=FORWARD_S),
        faults=plan,
        kept_bytes=kept_bytes,
    )
    swarm = SimSwarm(config)
    result = run(swarm.play(), config.seed)
    assert result.ended == RunFinished("all steps are done", failed=False)
    (voided,) = (one.microbatches for one in swarm.reports if isinstance(one, SumVoided))
    assert voided > 0, "it had counted something"
    useful_s = 3 * MICROBATCHES * STAGES * WORK_S
    return useful_s / swarm.useful_share - useful_s, voided


@pytest.mark.parametrize("seat", core_of([1, 2, 4], [2]), ids=["first", "second", "last"])
def test_what_a_dead_server_had_counted_is_computed_in_its_stage_alone(seat: int) -> None:
    with_kept_s, voided = done_again_s(seat, KEPT_BYTES)
    without_s, _ = done_again_s(seat, 0)

    alone_s = voided * WORK_S
    assert alone_s - 1e-9 <= with_kept_s < alone_s + 2 * WORK_S  # what was cut short besides
    assert without_s > 1.5 * with_kept_s
