"""What computes a stage: what its device lacks is told before anything is made there."""

import pytest
import torch

from p2pswarm.config import ModelConfig, RunConfig, ServeConfig
from p2pswarm.errors import Unusable
from p2pswarm.roles.stage import stage_engine


def test_a_run_in_float64_is_refused_on_a_device_that_lacks_it():
    run = RunConfig(model=ModelConfig(dtype="float64"))

    with pytest.raises(Unusable, match="'mps': float64 is a dtype the device lacks"):
        stage_engine(run, 0, ServeConfig(device="mps"), torch.device("mps"))
