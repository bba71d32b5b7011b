"""`p2pswarm check-model`: whether a run's model computes in stages what it computes as a whole.

Errors:  Unusable, one line, for a model that cannot be cut; RunEnded for one that computes wrong.
"""

import sys
import time
from pathlib import Path

import torch

from p2pswarm.compute.bundle_spec import check_model
from p2pswarm.compute.model_check import check_stages
from p2pswarm.errors import RunEnded
from p2pswarm.models.blocks import block_count
from p2pswarm.models.resolving import resolved
from p2pswarm.settings import load


def main(source: Path, begun_s: float) -> int:
    """Check the model of a settings file and say what was found."""
    torch.set_num_threads(1)  # it is small: threads would only wait for each other
    run = resolved(load(source).run)
    check_model(run)
    found = check_stages(run)
    if found.problem:
        raise RunEnded(f"{source}: the model computes wrong in stages: {found.problem}")
    apart = "identical" if found.apart == 0 else f"equal but for {found.apart:.0e}"
    sys.stdout.write(
        f"{source}: {run.model.family}, {block_count(run.model)} blocks in {run.stages} stages: "
        f"good\na small copy in {found.stages} stages and as a whole, forward, backward, computed "
        f"again, twice: the loss and the gradients of {found.parameters} parameters are {apart} "
        f"({time.monotonic() - begun_s:.1f} s)\n"
    )
    return 0
