"""The rows of a microbatch that each rank computes, and the models that can be split by rows.

A rank without a row computes one with the weight zero: torch's sharding needs all ranks in every
forward and backward.

Shapes:  B rows of a microbatch.
Errors:  Unusable for a model whose rows cannot be computed apart.
"""

from dataclasses import dataclass, replace

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import make_blocks, stage_blocks
from p2pswarm.models.boundary import CarriedTensor
from p2pswarm.models.compute.bundle_spec import boundary_above
from p2pswarm.models.dropout import draws
from p2pswarm.settings.config import RunConfig

REMEDY = "name one device, and start one node for each of the others"


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows start..stop-1 of a rank; at least one, which may count nothing."""

    start: int
    stop: int
    counted: int
    """How many of them count: 0 or all."""


def rows_of(rank: int, ranks: int, rows: int) -> Rows:
    """The rows of one rank, in order and as equal as can be."""
    start, stop = rank * rows // ranks, (rank + 1) * rows // ranks
    return Rows(start, stop, stop - start) if stop > start else Rows(0, 1, 0)


def split_keys(run: RunConfig, stage: int) -> frozenset[str]:
    """The tensors that cross the boundary above `stage` and have a row for each of the microbatch.

    The others are the same for all rows. Raises Unusable if a gradient of such a one goes back.
    """
    boundary, taller = boundary_above(run, stage), boundary_above(_with_a_row_more(run), stage)
    if boundary is None or taller is None:
        return frozenset()
    split = frozenset(
        a.key for a, b in zip(boundary.tensors, taller.tensors, strict=True) if _by_rows(a, b, run)
    )
    for tensor in boundary.tensors:
        if tensor.differentiable and tensor.key not in split:
            raise Unusable(
                f"{tensor.key!r} is trained and belongs to no row, so that rows cannot be computed "
                f"on several devices: {REMEDY}"
            )
    return split


def require_splittable(run: RunConfig, stage: int) -> None:
    """Raise Unusable for a stage that several devices cannot share."""
    with torch.device("meta"):
        blocks = make_blocks(run, stage_blocks(run, stage))
    if run.tied and run.stages == 1:
        raise Unusable(
            "a tied tensor is used by two blocks of one stage, whose weights devices would share: "
            f"{REMEDY}, or set run.stages to 2"
        )
    if run.model.router_loss:
        raise Unusable(f"run.model.router_loss is for one device a server: {REMEDY}")
    if any(map(draws, blocks)):
        raise Unusable(f"{who_draws(run)} for a whole microbatch, not for rows: {REMEDY}")
    trained = (each for block in blocks for each in block.parameters() if each.requires_grad)
    if any(parameter.dim() == 0 for parameter in trained):
        raise Unusable(f"a parameter that is one number has no rows to share: {REMEDY}")
    for boundary in (stage - 1, stage):
        split_keys(run, boundary)


def who_draws(run: RunConfig) -> str:
    """What of a run draws, and that it does."""
    own = run.adapter is not None and run.adapter.dropout > 0
    return "run.adapter.dropout draws" if own else "a model with dropout draws"


def _with_a_row_more(run: RunConfig) -> RunConfig:
    return replace(run, batch=replace(run.batch, rows=run.batch.rows + 1))


def _by_rows(one: CarriedTensor, taller: CarriedTensor, run: RunConfig) -> bool:
    """Return whether a tensor grows by a row with the microbatch."""
    a, b = one.shape, taller.shape
    return len(a) > 0 and a[1:] == b[1:] and (a[0], b[0]) == (run.batch.rows, run.batch.rows + 1)
