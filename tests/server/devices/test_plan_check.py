"""Plans are tried on a small copy: right ones pass, wrong ones are named."""

import pytest
from server.devices.harness import CPU, by_ranks, group_alone
from server.devices.planned_models import RIGHT, Table, Wide
from server.devices.test_rank_stage import family, gpt

from p2pswarm.base.errors import Unusable
from p2pswarm.models.registry import register
from p2pswarm.models.tensor_plan import Style, TensorShare
from p2pswarm.server.devices.plan_check import require_right_plan, tries_plan
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import TENSOR


def run_of(name, plan):
    register(name)(lambda model: [Table(model), Wide(model.vocabulary, plan)])
    model = ModelConfig(family=name, d_model=8, layers=2, heads=1, sequence_length=4)
    return RunConfig(stages=2, model=model, batch=BatchConfig(rows=2, microbatches=1))


def wrong_plans_are_refused(rank, ranks):
    require_right_plan(run_of("tp-right", RIGHT), (rank, ranks), CPU, TENSOR)
    require_right_plan(
        run_of("tp-head", RIGHT | {"head": TensorShare(Style.COLWISE)}), (rank, ranks), CPU, TENSOR
    )
    summed = RIGHT | {"norm": TensorShare(Style.OWN_FEATURES)}
    with pytest.raises(Unusable, match=r"tp-summed by tensors is wrong: the gradient of .*norm"):
        require_right_plan(run_of("tp-summed", summed), (rank, ranks), CPU, TENSOR)
    gathered = RIGHT | {"down": TensorShare(Style.ROWWISE_FROM_WHOLE)}
    with pytest.raises(Unusable, match="tp-shapes cannot be shared by tensors as its plan says"):
        require_right_plan(run_of("tp-shapes", gathered), (rank, ranks), CPU, TENSOR)
    for name in ("qwen3_moe", "gemma3_text"):
        require_right_plan(family(name, ranks=ranks), (rank, ranks), CPU, TENSOR)


def test_a_plan_that_is_wrong_for_a_model_is_named_by_what_differs(fork_server):
    by_ranks(fork_server, 2, wrong_plans_are_refused)


def test_a_right_plan_passes_in_a_group_of_one_and_ours_is_not_tried(tmp_path):
    with group_alone(tmp_path):
        require_right_plan(run_of("tp-alone", RIGHT), (0, 1), CPU, TENSOR)
        with pytest.raises(Unusable, match="cannot be shared by tensors"):
            require_right_plan(
                run_of("tp-bad", {"up": TensorShare(Style.EXPERTS)}), (0, 1), CPU, TENSOR
            )

    assert tries_plan(run_of("tp-alone", RIGHT))
    assert not tries_plan(gpt())
