"""A run whose servers or counts have no room in a step's record is refused before it begins."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.run.run_match import check_records
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig


def run(stages, microbatches, min_replicas):
    return RunConfig(
        stages=stages,
        min_replicas=min_replicas,
        model=ModelConfig(layers=stages),
        batch=BatchConfig(microbatches=microbatches),
    )


@pytest.mark.parametrize("replicas", [1, 100])
def test_run_whose_servers_have_room_begins(replicas):
    check_records(run(10, 4000, replicas))


@pytest.mark.parametrize(
    ("asked", "room"),
    [(run(10, 8000, 128), 1043), (run(20, 6000, 30), 116), (run(40, 4000, 1), 0)],
)
def test_run_whose_record_has_no_room_is_told_for_how_many_there_is(asked, room):
    says = f"room for {room} servers, and the run begins with {asked.stages * asked.min_replicas}:"
    with pytest.raises(Unusable, match=f"{says} lower run.batch.microbatches"):
        check_records(asked)
