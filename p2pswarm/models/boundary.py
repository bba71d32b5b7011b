"""The tensors that cross from block to block, found by running the model on the meta device.

Shapes:  tokens_BT: B rows of T tokens.
Errors:  Unusable for a model that cannot be traced, or whose last block gives no scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import BESIDE, LONE_KEY, Block, Bundle, Value, bundle_of
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.models.registry import Family, family
from p2pswarm.settings.config import RunConfig

TRACES_KEPT = 4  # models whose boundaries are remembered; a process serves one or two


@dataclass(frozen=True, slots=True)
class CarriedTensor:
    """One tensor of a bundle."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    differentiable: bool
    """True if it depends on weights; then a gradient of it goes back."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a block gives to the next one.

    Tracing computes shapes and no numbers. It depends only on the manifest, so all members of a
    run find the same keys in the same order, and need not send them.
    """

    tensors: tuple[CarriedTensor, ...]
    lone: bool
    """True if the block gives a tensor without a bundle, which the next block takes."""
    beside: tuple[str, ...] = ()
    """The keys of what passes beside; it does not travel, because it follows from the tokens,
    which each stage is given and checks."""

    @property
    def differentiable(self) -> tuple[str, ...]:
        """The keys that gradients come back for, in order."""
        return tuple(each.key for each in self.tensors if each.differentiable)

    def value(self, bundle: Bundle, beside: Bundle) -> Value:
        """A bundle in the form in which the next block takes it; `beside` has all that passes so.

        `compute/tokens.py` makes it.
        """
        if self.lone:
            return bundle[LONE_KEY]
        return {**bundle, **{key: beside[key] for key in self.beside}}

    def ordered(self, value: Value) -> Bundle:
        """The bundle that the block gave, in the boundary's order; Unusable for other keys."""
        bundle = _travelling(value)
        keys = tuple(each.key for each in self.tensors)
        if bundle.keys() != set(keys):
            raise Unusable(
                f"a block gave {', '.join(bundle)}; when traced it was {', '.join(keys)}"
            )
        return {key: bundle[key] for key in keys}


def boundaries(run: RunConfig) -> tuple[Boundary, ...]:
    """Return what each block of the model gives, in order."""
    return _traced(family(run.model.family, run.model.package), run)


@lru_cache(maxsize=TRACES_KEPT)
def _traced(build: Family, run: RunConfig) -> tuple[Boundary, ...]:
    del build  # the same name may mean another function later
    shape = run.batch.rows, run.model.sequence_length
    with torch.device("meta"), torch.enable_grad():
        blocks = make_blocks(run, range(block_count(run.model)))
        value: Value = torch.zeros(shape, dtype=torch.int64)
        found: list[Boundary] = []
        for number, block in enumerate(blocks):
            what = f"block {number} ({type(block).__name__})"
            untraced = f"{what} of family {run.model.family!r} cannot be traced on the meta device"
            with foreign(untraced):
                value = block.trace(value) if isinstance(block, Block) else block(value)
            _require_value(value, what, run.model.family)
            found.append(_boundary(value))
    _require_scores(bundle_of(value), shape, run)
    return tuple(found)


def _require_value(value: object, block: str, family_name: str) -> None:
    """Raise Unusable for what no block may give."""
    parts = value.items() if isinstance(value, dict) else [(LONE_KEY, value)]
    for key, part in parts:
        if isinstance(key, str) and isinstance(part, Tensor):
            continue
        what = f"a {type(part).__name__}"
        if isinstance(value, dict):
            what = f"{type(part).__name__} as {key!r}"
        elif value is None:
            what = "nothing"
        raise Unusable(
            f"{block} of family {family_name!r} gives {what}: a block gives a tensor, or a dict of "
            "tensors by their names"
        )


def _boundary(value: Value) -> Boundary:
    tensors = tuple(
        CarriedTensor(
            key, x.dtype, tuple(x.shape), differentiable=x.is_floating_point() and x.requires_grad
        )
        for key, x in _travelling(value).items()
    )
    beside = tuple(key for key in bundle_of(value) if key in BESIDE)
    return Boundary(tensors, isinstance(value, Tensor), beside)


def _travelling(value: Value) -> Bundle:
    return {key: x for key, x in bundle_of(value).items() if key not in BESIDE}


def _require_scores(bundle: Bundle, shape: Sequence[int], run: RunConfig) -> None:
    scores = bundle.get(LONE_KEY)
    wanted = (*shape, run.model.vocabulary)
    if scores is None or scores.shape != wanted or scores.dtype != DTYPES[run.model.dtype]:
        came = "nothing" if scores is None else f"{scores.dtype} {tuple(scores.shape)}"
        raise Unusable(
            f"the last block of family {run.model.family!r} gives {came} as {LONE_KEY!r}; "
            f"scores of {run.model.dtype} {wanted} are due"
        )
