"""Blocks with modules at their ends, where a run is cut: `run.model.boundary`.

The sender's half ends the block below a cut, the receiver's half begins the block above. They own
ordinary parameters, so they are trained, averaged, saved and downloaded as any others are. What
crosses is then `boundary_width` wide. The cut is part of such a model: its modules are where it is.

Some halves need a row's tokens. Inside a process these pass beside `x`, past all blocks up to the
last cut. Between stages they do not travel: each stage is given them anyway (`boundary.py`).

Shapes:  as the blocks; x_BTD between them, tokens_BT into the first.
Errors:  Unusable for families, sizes and starts that have no modules.
"""
# ruff: noqa: D102, N803, N806  `WholeBlock` documents methods; shapes end the names

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import LONE_KEY, TOKENS, Block, Value, WholeBlock, bundle_of
from p2pswarm.models.boundary_modules.base import CutSizes, Half
from p2pswarm.models.boundary_modules.kinds import pair_of
from p2pswarm.models.boundary_modules.subspace import Subspace
from p2pswarm.models.boundary_modules.token_signs import TokenSigns
from p2pswarm.models.dropout import draws
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.gpt import begin_with, narrow_writers
from p2pswarm.models.tensor_plan import TensorPlan
from p2pswarm.settings.config import HF, RunConfig

NONE, SUBSPACE, GPT = "none", "subspace", "gpt"
INNER = "inner."


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where a block is in its model."""

    number: int
    passes_tokens: bool
    """True if a block above needs them."""


class BoundaryBlock(WholeBlock):
    """A block beside a cut, or one that tokens pass."""

    def __init__(
        self, inner: Block, place: BlockPlace, receiver: Half | None, sender: Half | None
    ) -> None:
        super().__init__()
        self.inner, self.receiver, self.sender = inner, receiver, sender
        self._place = place
        self.random = draws(inner)
        self.ignored = inner.ignored if isinstance(inner, WholeBlock) else ()
        frozen = inner.frozen if isinstance(inner, WholeBlock) else ()
        self.frozen = frozenset(f"{INNER}{name}" for name in frozen)
        self.tables = frozenset(
            f"{end}.{name}"
            for end, half in (("receiver", receiver), ("sender", sender))
            for name in (half.tables if half else ())
        )
        if inner.tied is not None:
            own, full = inner.tied
            self.tied = f"{INNER}{own}", full

    def forward(self, value: Value) -> Value:
        return self._passed(value, self.inner)

    def trace(self, value: Value) -> Value:
        inner = self.inner
        return self._passed(value, inner.trace if isinstance(inner, Block) else inner)

    def _passed(self, value: Value, inner: Callable[[Value], Value]) -> Value:
        bundle = bundle_of(value)
        first = self._place.number == 0
        tokens_BT = bundle[LONE_KEY] if first else bundle.get(TOKENS)
        bundle = {key: x for key, x in bundle.items() if key != TOKENS}
        if self.receiver is not None:
            bundle[LONE_KEY] = _alike(self.receiver, bundle[LONE_KEY], tokens_BT)
        made = dict(bundle_of(inner(bundle[LONE_KEY] if first and len(bundle) == 1 else bundle)))
        if self.sender is not None:
            made[LONE_KEY] = _alike(self.sender, made[LONE_KEY], tokens_BT)
        if self._place.passes_tokens and tokens_BT is not None:
            made[TOKENS] = tokens_BT
        return made if len(made) > 1 else made[LONE_KEY]

    @property
    def tensor_plan(self) -> TensorPlan:
        """The block's own; the halves are whole on every device."""
        plan: TensorPlan = getattr(self.inner, "tensor_plan", {})
        return {f"{INNER}{name}": share for name, share in plan.items()}

    def full_name(self, name: str) -> str:
        own = name.removeprefix(INNER)
        if own != name and isinstance(self.inner, WholeBlock):
            return self.inner.full_name(own)
        return f"blocks.{self._place.number}.{own}"

    def draw_name(self, name: str) -> str:
        """The name that a value is drawn by: a block draws the same with modules as without."""
        own = name.removeprefix(INNER)
        if own != name and isinstance(self.inner, WholeBlock):
            return self.inner.draw_name(own)
        if self.tied is not None and name == self.tied[0]:
            return self.tied[1]
        return f"{self._place.number}:{own}"

    def published_names(self, name: str) -> tuple[str, ...]:
        return (self.full_name(name),)

    def draw(self, generator: torch.Generator) -> None:
        self.inner.draw(generator)
        for half in (self.receiver, self.sender):
            if half is not None:
                half.draw(generator)

    def fill_buffers(self, device: torch.device) -> None:
        if isinstance(self.inner, WholeBlock):
            self.inner.fill_buffers(device)


def has_modules(run: RunConfig) -> bool:
    """Return whether the run's model has modules at its cuts."""
    return run.model.boundary != NONE and run.stages > 1


def with_modules(
    run: RunConfig, blocks: Sequence[nn.Module], cuts: Sequence[int]
) -> list[nn.Module]:
    """All blocks of a model, with modules at `cuts`: the first block above each."""
    model = run.model
    if not has_modules(run):
        return list(blocks)
    _require_family(run)
    whole = [block for block in blocks if isinstance(block, Block)]
    sizes = CutSizes(
        width=_width(whole),
        narrow=model.boundary_width or max(1, _width(whole) // 4),
        vocabulary=model.vocabulary,
        dtype=DTYPES[model.dtype],
        seed=run.seed,
        signs=pair_of(model.boundary).tokens and model.family == GPT,
    )
    if sizes.narrow > sizes.width:
        raise Unusable(
            f"run.model.boundary_width {sizes.narrow} is more than the {sizes.width} features of "
            "the model: set it to fewer, or to 0 for a quarter"
        )
    if sizes.signs:
        begin_with(whole, TokenSigns(sizes))
    if model.boundary == SUBSPACE:
        narrow_writers(whole[: cuts[-1]], Subspace(sizes), sizes.narrow)
    return list(_with_ends(whole, cuts, model.boundary, sizes))


def _with_ends(
    blocks: Sequence[Block], cuts: Sequence[int], name: str, sizes: CutSizes
) -> Iterator[nn.Module]:
    pair = pair_of(name)
    for number, block in enumerate(blocks):
        receiver = pair.receiver(sizes) if number in cuts else None
        sender = pair.sender(sizes) if number + 1 in cuts else None
        passes = pair.tokens and number < cuts[-1]
        if receiver or sender or passes:
            yield BoundaryBlock(block, BlockPlace(number, passes), receiver, sender)
        else:
            yield block


def _require_family(run: RunConfig) -> None:
    model = run.model
    what = f'run.model.boundary = "{model.boundary}"'
    if model.family != GPT and not model.family.startswith(HF):
        raise Unusable(
            f"{what} is for gpt and {HF} models, not for {model.family}: leave it out, and set "
            'codecs.activation = "dither6", codecs.gradient = "dither3"'
        )
    if model.boundary == SUBSPACE and model.family != GPT:
        raise Unusable(
            f"{what} changes the matrices of a block, which it knows of gpt alone: set "
            '"projector" for the library\'s models'
        )
    if model.boundary == SUBSPACE and model.tie:
        raise Unusable(
            f"{what} has an embedding of boundary_width features, which cannot be the head too: "
            "leave run.model.tie out"
        )


def _width(blocks: Sequence[Block]) -> int:
    """The features of a row between blocks."""
    width: int = blocks[0].width
    return width


def _alike(half: Half, value: Tensor, tokens_BT: Tensor | None) -> Tensor:
    """What a half makes, in the dtype that it was given: autocast would pass on fewer bits."""
    made: Tensor = half(value, tokens_BT)
    return made.to(value.dtype)
