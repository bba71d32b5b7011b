"""The bundles that cross between stages, derived from what a model's blocks give.

Errors:  Unusable for tensors that cannot travel.
"""

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.boundary import Boundary, boundaries
from p2pswarm.models.dropout import draws
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import DTYPES, TensorUse
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.edge_codecs import EdgeCodecs, edge_codecs
from p2pswarm.tensors.codecs.meta import TensorLayout


def boundary_above(run: RunConfig, stage: int) -> Boundary | None:
    """The boundary from `stage` to the next one; None above the last and below the first."""
    if not 0 <= stage < run.stages - 1:
        return None
    return boundaries(run)[stage_blocks(run, stage).stop - 1]


def bundle_spec(boundary: Boundary | None) -> BundleSpec:
    """The bundle that crosses `boundary`; an empty one at the ends of the model."""
    if boundary is None:
        return BundleSpec()
    keys = []
    for tensor in boundary.tensors:
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            known = ", ".join(str(each).removeprefix("torch.") for each in DTYPES)
            raise Unusable(
                f"{tensor.key!r} crosses between stages as {tensor.dtype}: convert it to one of "
                f"{known}"
            )
        keys.append(BundleKey(tensor.key, TensorLayout(dtype, tensor.shape), tensor.differentiable))
    if not any(key.differentiable for key in keys):
        raise Unusable(
            "nothing that crosses between two stages depends on weights, so the blocks below could "
            "not learn: a block gives whole numbers only, or detaches what it gives"
        )
    return BundleSpec(tuple(keys))


def engine_bundles(run: RunConfig, stage: int) -> tuple[BundleSpec, BundleSpec]:
    """The bundles that a stage takes and gives."""
    return bundle_spec(boundary_above(run, stage - 1)), bundle_spec(boundary_above(run, stage))


def check_model(run: RunConfig) -> None:
    """Raise Unusable for a run whose stages cannot be cut, traced or joined."""
    with torch.device("meta"):
        drawing = any(map(draws, make_blocks(run, range(block_count(run.model)))))
    if drawing and run.spot_check_share:
        raise Unusable(
            "the model has dropout, which differs between kinds of processors: set its dropout or "
            "run.spot_check_share to 0"
        )
    for stage in range(run.stages):
        stage_blocks(run, stage)
        bundle = bundle_spec(boundary_above(run, stage))
        activation_codecs(run, stage, bundle)
        gradient_codecs(run, stage, bundle)


def activation_codecs(run: RunConfig, stage: int, bundle: BundleSpec) -> EdgeCodecs:
    """The codecs of a bundle on its way from `stage` to the one above."""
    codecs = run.codecs
    up, above = TensorUse.ACTIVATION, block_above(run, stage)
    return edge_codecs(bundle, codecs.activation, codecs.activation_of, up, above, run.seed)


def gradient_codecs(run: RunConfig, stage: int, bundle: BundleSpec) -> EdgeCodecs:
    """The codecs of the gradient of what `stage` gives, on its way back to it."""
    codecs, gradient = run.codecs, bundle.gradient()
    down, above = TensorUse.GRADIENT, block_above(run, stage)
    return edge_codecs(gradient, codecs.gradient, codecs.gradient_of, down, above, run.seed)


def block_above(run: RunConfig, stage: int) -> int:
    """The number of the first block above the boundary that `stage` gives; 0 below the first."""
    return stage_blocks(run, stage).stop if stage >= 0 else 0
