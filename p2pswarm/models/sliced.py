"""A causal language model of `transformers` as a list of blocks, cut without editing it.

Each block is the model's own class with most of its layers taken away, and runs the model's own
forward. So whatever stands there (masks, sliding windows, rotary positions, multipliers, soft caps)
is done as its authors wrote it. The first block has the embedding and what else comes before the
layers, each next one a layer, the last the norm and the head. Parameters have the names that they
have in the whole model.

Shapes:  x_BTD between blocks, float, and beside it each token's position in its document where
         documents are apart; tokens_BT into the first; scores_BTV out of the last.
Errors:  Unusable for a model that cannot be cut, with the reason.
"""
# ruff: noqa: D102, N806, SLF001  `Block` documents methods; `_init_weights` is the library's

import copy
import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import LONE_KEY, Bundle, Value, WholeBlock, bundle_of
from p2pswarm.models.config_text import chances
from p2pswarm.models.documents import APART, POSITION_KEY, beside, check_length, positions_of
from p2pswarm.models.foreign_code import foreign, said
from p2pswarm.models.hf_cut import (
    core,
    layers_name,
    make_constant,
    multiplications,
    owners,
    part,
    part_config,
)
from p2pswarm.models.hf_library import whole_model
from p2pswarm.models.hf_tensor_plan import library_plan
from p2pswarm.models.tensor_plan import TensorPlan
from p2pswarm.models.unset import is_unset, unset
from p2pswarm.settings.config import ModelConfig

MADE_OTHERWISE = (AttributeError, LookupError, TypeError, ValueError)
"""What our own lines raise when they take apart a model that is made in another way."""
OLD_CONSTANTS = r"rotary_emb\.inv_freq$|\.attn\.(masked_)?bias$|\.attention\.(masked_)?bias$"


def sliced(model: ModelConfig) -> list[nn.Module]:
    """Embedding, layers and head of the model that `model.config` describes."""
    whole: Any = whole_model(model)
    return sliced_of(whole, model.family, _document_end(model, whole))


def sliced_of(whole: Any, family: str, end: int | None) -> list[nn.Module]:
    """The same of a `whole` model; `end`: the token that ends a document, if they are apart."""
    uncut = f"{family} cannot be cut"
    with foreign(uncut):
        try:
            count = len(getattr(core(whole), layers_name(whole)))
            return [SlicedBlock(whole, number, count, end) for number in range(count + 2)]
        except MADE_OTHERWISE as error:
            raise Unusable(f"{uncut}: {said(error)}") from error


def _document_end(model: ModelConfig, whole: Any) -> int | None:
    """The token that ends a document, if documents are to be apart."""
    if model.documents != APART:
        return None
    check_length(model.sequence_length)
    if "position_ids" not in inspect.signature(core(whole).forward).parameters:
        raise Unusable(
            f'run.model.documents = "{APART}": {model.family} takes no positions, so that its '
            'documents cannot be kept apart: leave it out, or set it to "joined"'
        )
    return model.document_end


class SlicedBlock(WholeBlock):
    """One block: the model with its embedding, one of its layers, or its head."""

    def __init__(self, whole: Any, number: int, count: int, end: int | None) -> None:
        """`whole` is on the meta device and stays as it is; it has `count` layers.

        `end`: the token that ends a document, if documents are to be apart.
        """
        super().__init__()
        self._end = end
        self.first, self.last = number == 0, number == count + 1
        self.inner: Any = part(whole, number)
        base, self._list = core(whole), layers_name(whole)
        self._full, self._own = base.config, part_config(whole, number)
        self._number = number
        path = next(name for name, module in whole.named_modules() if module is base)
        self._head = f"{path}.{self._list}."
        self._width, self._vocabulary = int(self._full.hidden_size), int(self._full.vocab_size)
        self._tied: dict[str, str] = dict(whole._tied_weights_keys or {}) if whole.was_tied else {}
        self.ignored = _ignored(whole)
        self._embedding = (whole.get_input_embeddings(),)  # in a tuple it is no part of this one
        if whole.is_tied and (self.first or self.last):
            self.tied = _end_of(whole, self)
        core(self.inner).config = self._own
        self.random = bool(chances(self._full.to_dict()))
        self.cost = float(self._width if self.first else multiplications(self.inner, self._full))
        self.constants = frozenset(map(self.full_name, make_constant(self)))
        self._dtypes = {name: buffer.dtype for name, buffer in self.named_buffers()}

    def forward(self, value: Value) -> Value:
        bundle, base = bundle_of(value), core(self.inner)
        x, position_BT = bundle[LONE_KEY], self._positions(bundle)
        # the library makes masks by document of positions that begin again
        place = {} if position_BT is None else {"position_ids": position_BT.long()}
        before, behind = (getattr(base, self._list)[end] for end in (0, -1))
        try:
            if self.first:
                base(input_ids=x, use_cache=False, **place)
            else:
                before.x_BTD = x
                # it is thrown away, and some families change it where it lies
                run = self.inner if self.last else base
                made = run(inputs_embeds=torch.zeros_like(x), use_cache=False, **place)
            return made.logits if self.last else beside(behind.x_BTD, position_BT)
        finally:
            before.x_BTD = behind.x_BTD = None

    def trace(self, value: Value) -> Value:
        """What `forward` gives, in shape: a mixture of experts cannot run on the meta device."""
        bundle, dtype = bundle_of(value), next(self.parameters()).dtype
        x, position_BT = bundle[LONE_KEY], self._positions(bundle)
        if self.first:
            made = torch.zeros(*x.shape, self._width, dtype=dtype, device=x.device)
            return beside(made.requires_grad_(), position_BT)
        if x.shape[-1] != self._width or x.dtype != dtype:
            raise Unusable(
                f"{type(self.inner).__name__} cannot be cut: block {self._number} is given "
                f"{x.dtype} by {x.shape[-1]}, {dtype} by {self._width} is due"
            )
        if self.last:
            return x[..., :1].expand(-1, -1, self._vocabulary) * 1
        return beside(x * 1, position_BT)

    def _positions(self, bundle: Bundle) -> Tensor | None:
        """Of each token in its document, if documents are to be apart."""
        if not self.first:
            return bundle.get(POSITION_KEY)
        return None if self._end is None else positions_of(bundle[LONE_KEY], self._end)

    @property
    def tensor_plan(self) -> TensorPlan:
        """How devices share the block's tensors, as the family's own plan says."""
        plan = library_plan(self.inner, first=self.first, last=self.last)
        return {f"inner.{name}": share for name, share in plan.items()}

    def full_name(self, name: str) -> str:
        """The name that a parameter of this block has in the whole model."""
        if self.tied is not None and name == self.tied[0]:
            return self.tied[1]
        own = name.removeprefix("inner.")
        if not own.startswith(self._head):
            return own
        _, _, last = own.removeprefix(self._head).partition(".")
        return f"{self._head}{self._number - 1}.{last}"

    def draw_name(self, name: str) -> str:
        """The name that first values are drawn by: a head that was tied begins as the embedding."""
        full = self.full_name(name)
        return self._tied.get(full, full)

    @torch.no_grad()
    def draw(self, generator: torch.Generator) -> None:
        del generator  # values are drawn by names (`first_weights.py`)
        with self._with_full_config():
            for owner, module in owners(self.inner, self.inner):
                if not (self._tied and module is self.inner.get_output_embeddings()):
                    owner._init_weights(module)
            if self.last and self._tied:
                as_embedding = copy.copy(self._embedding[0])
                as_embedding._parameters = {"weight": self.inner.get_output_embeddings().weight}
                as_embedding._buffers = {
                    name: torch.empty_like(buffer, device="cpu")
                    for name, buffer in as_embedding._buffers.items()
                    if buffer is not None
                }
                core(self.inner)._init_weights(as_embedding)
        for name, buffer in self.named_buffers():  # that code fills them, too
            buffer.copy_(buffer.to(self._dtypes[name]))

    def fill_buffers(self, device: torch.device) -> None:
        """Make the buffers of a block that was made on the meta device, as the model makes them.

        They have the numbers of the dtype in which the library has them, whatever the run's is.
        """
        paths = {id(module): path for path, module in self.named_modules()}
        with self._with_full_config():
            for owner, module in owners(self.inner, self.inner):
                self._fill(owner, module, f"{paths[id(module)]}.", device)

    def _fill(self, owner: Any, module: nn.Module, path: str, device: torch.device) -> None:
        bare = {name: b for name, b in module._buffers.items() if b is not None and b.is_meta}
        for name, buffer in bare.items():
            dtype = self._dtypes[path + name]
            module._buffers[name] = unset(torch.empty_like(buffer, dtype=dtype, device=device))
        if bare:
            owner._init_weights(module)
        for name, buffer in bare.items():
            made = module.get_buffer(name)
            if is_unset(made):
                raise Unusable(
                    f"{self._full.model_type} cannot be cut: its code gives {name} of "
                    f"{type(module).__name__} no value without a file of weights"
                )
            module._buffers[name] = made.to(buffer.dtype)

    @contextmanager
    def _with_full_config(self) -> Iterator[None]:
        """Inside, the library's code sees the config of the whole: some scale by the layers."""
        base = core(self.inner)
        base.config = self._full
        try:
            yield
        finally:
            base.config = self._own


def _ignored(whole: Any) -> tuple[str, ...]:
    """What files of weights may hold besides, as regular expressions: also the library ignores it.

    Such are heads that are tied, and constants that older versions have saved.
    """
    tied = (re.escape(name) + "$" for name in whole._tied_weights_keys or {})
    computed = (re.escape(name) for name, _ in whole.named_buffers())
    return (*(whole._keys_to_ignore_on_load_unexpected or ()), *tied, *computed, OLD_CONSTANTS)


def _end_of(whole: Any, block: SlicedBlock) -> tuple[str, str]:
    """What the first or the last block of a tied model has in common with the other."""
    inner = block.inner
    ends = [whole.get_input_embeddings(), whole.get_output_embeddings()]
    names = [name for end in ends for name, p in whole.named_parameters() if p is end.weight]
    if len(names) != len(ends) or dict(whole._tied_weights_keys) != {names[1]: names[0]}:
        raise Unusable(
            f"{whole.config.model_type} ties more than the weights of its embedding and its head: "
            "run.model.tie = false makes them two that begin equal"
        )
    here = inner.get_input_embeddings() if block.first else inner.get_output_embeddings()
    own = next(name for name, p in block.named_parameters() if p is here.weight)
    return own, names[0]
