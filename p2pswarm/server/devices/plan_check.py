"""The check that a model which devices share by tensors, or by tokens, computes what it does alone.

Each rank computes a small copy of the whole model (`models/check/small_copy.py`) in float64, by
itself and with the others, on the same tokens. A plan that is wrong for a model gives another loss
or another gradient of some parameter. By tokens there is one document, which has to be split: so
a layer that carries something along a row besides its attention is found.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import dataclasses

import torch
import torch.distributed as dist
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import cut_into
from p2pswarm.models.check.model_check import (
    Computed,
    Gradients,
    difference_of,
    fill_factors,
    tokens_of,
)
from p2pswarm.models.check.small_copy import shrunken
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.hf_model import BY_ROWS
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.server.devices.rank_stage import RankOptions, RankStage
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import TENSOR
from p2pswarm.tensors.flat_layout import FlatLayout

TOLERANCE = 1e-5  # many families sum parts in float32; wrong plans gave 0.8 and more


def tries_plan(run: RunConfig) -> bool:
    """Return whether the plan is of others' making; tests hold that of `gpt` to the same."""
    return run.model.family != "gpt"


def require_right_plan(
    run: RunConfig, rank: tuple[int, int], device: torch.device, parallel: str
) -> None:
    """Raise Unusable unless all ranks, which ask at once, give the gradients that one gives.

    `parallel`: what they share, by the name of the setting.
    """
    if parallel == TENSOR:
        small, shares = shrunken(run, rank[1]), "by tensors as its plan says"
        small = dataclasses.replace(small, base="full")  # its widths are no multiples of a scale's
    else:
        small, shares = _of_one_document(shrunken(run)), "by the tokens of a row"
    small = cut_into(small, 1)
    tokens_BS = tokens_of(small)
    alone = ReferenceTrainer(small, device)
    fill_factors(alone.flat)
    loss = alone.add(tokens_BS, 0)
    flat = alone.flat
    shared = {"params": flat.params_N.detach(), "tokens": tokens_BS}
    shared["sum"] = torch.zeros_like(flat.sum_N)
    shared |= flat.base.memory if flat.base is not None else {}
    with foreign(f"the model {run.model.family} cannot be shared {shares}", f": {BY_ROWS}"):
        together = RankStage(small, 0, rank, device, shared, RankOptions(parallel=parallel))
        together.take_base()
        together.take_weights()
        told = together.last(differentiate=True)[0]
        together.settle(add=True)
        together.give_sums()
    nats = torch.tensor([told], dtype=torch.float64, device=device)
    for total in (nats, shared["sum"]):
        dist.all_reduce(total)
    expected = Computed(loss, _by_name(flat.layout, flat.sum_N))
    mean = nats.item() / small.tokens_per_microbatch
    found = Computed(mean, _by_name(flat.layout, shared["sum"]))
    _, problem = difference_of(expected, found, TOLERANCE)
    if problem:
        if parallel == TENSOR:
            why = f"the plan to share {run.model.family} by tensors is wrong"
        else:
            why = f"{run.model.family} carries more along a row than attention knows"
        raise Unusable(f"{why}: {problem}: {BY_ROWS}")


def _of_one_document(run: RunConfig) -> RunConfig:
    model = dataclasses.replace(run.model, documents="joined")
    batch = dataclasses.replace(run.batch, rows=1, samples="drawn")
    return dataclasses.replace(run, model=model, batch=batch)


def _by_name(layout: FlatLayout, sum_N: Tensor) -> Gradients:
    return {tensor.name: sum_N[tensor.start : tensor.stop] for tensor in layout.tensors}
