"""The transformer: an embedding, pre-norm layers with rotary positions, and a head.

Matrices start at variance 1/D. At D = 128 this learns as much in 40 s as GPT-2's fixed deviation of
0.02 does in 60 s (docs/figures.md).

Shapes:  B rows, T tokens a row, D features, H heads, K features a head, V vocabulary.
Source:  rotary positions: arXiv 2104.09864; RMSNorm: arXiv 1910.07467; squared ReLU: arXiv
         2109.08668; depth-scaled output projections: GPT-2; a tied embedding times the root of D:
         arXiv 1706.03762, 3.4.
"""
# ruff: noqa: D102, N803, N806  `Block` documents its methods; shapes end the names

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  torch's own name for it

from p2pswarm.models.attention.document_attention import AttentionRule
from p2pswarm.models.base import LONE_KEY, Block, Value, bundle_of, traced_through, trains
from p2pswarm.models.boundary_modules.subspace import Subspace
from p2pswarm.models.boundary_modules.token_signs import TokenSigns
from p2pswarm.models.document_positions import (
    APART,
    KEPT_APART,
    beside,
    positions_in,
    positions_of,
)
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.tensor_plan import TensorPlan, TensorSplit
from p2pswarm.settings.config import ModelConfig

MLP_RATIO = 4  # hidden features of the MLP over D, as in GPT-2
ROTARY_BASE = 10_000.0  # as in the paper on rotary positions
NORM_EPS = 1e-6
BESIDE_SIGNS_STD = 0.1  # of an embedding beside fixed signs: what has to cross begins small
CAUSAL = AttentionRule()
TIED = "tied.token_VD"
"""The name of the tensor that is embedding and head, if `run.model.tie` says so."""


def gpt(config: ModelConfig) -> list[nn.Module]:
    """Embedding, `config.layers` layers, head. Their costs are multiplications per token."""
    dtype = DTYPES[config.dtype]
    layers = [Layer(config, dtype) for _ in range(config.layers)]
    return [Embedding(config, dtype), *layers, Head(config, dtype)]


class Embedding(Block):
    """Tokens to vectors."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.cost = self.width = model.d_model  # a look-up
        self.subspace: Subspace | None = None
        self.signs: TokenSigns | None = None
        """A fixed vector of each token, which a row begins with besides."""
        self.token_VD = nn.Parameter(torch.empty(model.vocabulary, model.d_model, dtype=dtype))
        # a tied tensor begins as a head does; times the root of D its rows have variance 1 again
        self.std, self.scale = 1.0, 1.0
        if model.tie:
            self.std, self.scale = model.d_model**-0.5, math.sqrt(model.d_model)
        self.tied = ("token_VD", TIED) if model.tie else None
        self.apart = model.documents in KEPT_APART
        self.end = model.document_end if model.documents == APART else -1
        self.vocabulary = model.vocabulary
        self.tensor_plan: TensorPlan = {"token_VD": TensorSplit(0)}

    def draw(self, generator: torch.Generator) -> None:
        _normal(self.token_VD, self.std, generator)

    def forward(self, value: Value) -> Value:
        bundle = bundle_of(value)
        tokens_BT, position_BT = bundle[LONE_KEY], positions_in(bundle)
        if self.apart and position_BT is None:
            position_BT = positions_of(tokens_BT, self.end)
        x_BTD = self.tensor_group.look_up(self._vectors, tokens_BT, self.vocabulary)
        x_BTD = x_BTD if self.subspace is None else self.subspace.widened(x_BTD)
        x_BTD = x_BTD * self.scale if self.tied else x_BTD
        x_BTD = x_BTD if self.signs is None else x_BTD + self.signs(tokens_BT)
        return beside(x_BTD, position_BT)

    def trace(self, value: Value) -> Value:
        tokens_BT = bundle_of(value)[LONE_KEY]
        grows = trains(self)  # the matrix, or an adapter of it
        x_BTD = self.token_VD.new_empty((*tokens_BT.shape, self.width), requires_grad=grows)
        return beside(x_BTD, torch.empty_like(tokens_BT, dtype=torch.int32) if self.apart else None)

    def _vectors(self, tokens_BT: Tensor) -> Tensor:
        return F.embedding(tokens_BT, self.token_VD)


class Layer(Block):
    """Attention and MLP, each on a normed copy that is added back."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, hidden = model.d_model, MLP_RATIO * model.d_model
        self.layers, self.head_width = model.layers, width // model.heads
        self.sequence_length = model.sequence_length
        self.cost = (4 + 2 * MLP_RATIO) * width**2 + 2 * width * model.sequence_length

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, columns, dtype=dtype))

        self.attention_norm_D = nn.Parameter(torch.empty(width, dtype=dtype))
        self.qkv = matrix(3 * width, width)
        self.attention_out = matrix(width, width)
        self.mlp_norm_D = nn.Parameter(torch.empty(width, dtype=dtype))
        self.mlp_in = matrix(hidden, width)
        self.mlp_out = matrix(width, hidden)
        self.tensor_plan: TensorPlan = {
            "qkv": TensorSplit(0, parts=3, units=model.heads),
            "attention_out": TensorSplit(1, units=model.heads),
            "mlp_in": TensorSplit(0),
            "mlp_out": TensorSplit(1),
        }
        self.subspace: Subspace | None = None
        self._rotary: tuple[Tensor, Tensor] | None = None

    def draw(self, generator: torch.Generator) -> None:
        std = self.qkv.shape[1] ** -0.5
        out_std = std / math.sqrt(2 * self.layers)
        self.attention_norm_D.fill_(1.0)
        self.mlp_norm_D.fill_(1.0)
        _normal(self.qkv, std, generator)
        _normal(self.mlp_in, std, generator)
        _normal(self.attention_out, out_std, generator)
        _normal(self.mlp_out, out_std, generator)

    def forward(self, value: Value) -> Value:
        bundle, group = bundle_of(value), self.tensor_group
        x_BTD, position_BT = bundle[LONE_KEY], positions_in(bundle)
        rows, length, width = x_BTD.shape
        normed_BTD = F.rms_norm(x_BTD, (width,), self.attention_norm_D, NORM_EPS)
        qkv = F.linear(group.enter(normed_BTD), self.qkv)
        qkv = qkv.view(rows, length, 3, -1, self.head_width)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        # some of a row's tokens may be here, at any places of it
        places = length if position_BT is None else max(length, self.sequence_length)
        cos_TK, sin_TK = self._angles(x_BTD, places, q_BHTK.shape[-1])
        if position_BT is not None:
            cos_TK, sin_TK = (angles[position_BT].unsqueeze(1) for angles in (cos_TK, sin_TK))
        q_BHTK, k_BHTK = (_rotate(x, cos_TK, sin_TK) for x in (q_BHTK, k_BHTK))
        if position_BT is None:
            attended_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        else:
            attended_BHTK = self.token_group.attend(q_BHTK, k_BHTK, v_BHTK, position_BT, CAUSAL)
        joined_BTD = attended_BHTK.transpose(1, 2).flatten(2)
        x_BTD = x_BTD + self._written(group.leave(F.linear(joined_BTD, self.attention_out)))
        normed_BTD = F.rms_norm(x_BTD, (width,), self.mlp_norm_D, NORM_EPS)
        hidden = F.relu(F.linear(group.enter(normed_BTD), self.mlp_in)).square()
        x_BTD = x_BTD + self._written(group.leave(F.linear(hidden, self.mlp_out)))
        return beside(x_BTD, position_BT)

    def trace(self, value: Value) -> Value:
        bundle = bundle_of(value)
        return beside(traced_through(self, bundle[LONE_KEY]), positions_in(bundle))

    def _written(self, x: Tensor) -> Tensor:
        """What is added to a row, of the model's width."""
        return x if self.subspace is None else self.subspace.widened(x)

    def _angles(self, x_BTD: Tensor, length: int, features: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's rotation, made once for each length."""
        if self._rotary is None or self._rotary[0].shape[0] != length:
            place = torch.arange(length, dtype=torch.float64)
            pair = torch.arange(0, features, 2, dtype=torch.float64)
            angle = torch.outer(place, ROTARY_BASE ** (-pair / features))
            both = torch.cat((angle, angle), dim=1)
            sign = torch.cat((-torch.ones_like(pair), torch.ones_like(pair)))
            self._rotary = (both.cos().to(x_BTD), (both.sin() * sign).to(x_BTD))
        return self._rotary


class Head(Block):
    """Vectors to the scores of the next token."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.cost = model.d_model * model.vocabulary
        self.norm_D = nn.Parameter(torch.empty(model.d_model, dtype=dtype))
        self.score_VD = nn.Parameter(torch.empty(model.vocabulary, model.d_model, dtype=dtype))
        self.tied = ("score_VD", TIED) if model.tie else None
        self.tensor_plan: TensorPlan = {"score_VD": TensorSplit(0)}

    def draw(self, generator: torch.Generator) -> None:
        self.norm_D.fill_(1.0)
        _normal(self.score_VD, self.score_VD.shape[1] ** -0.5, generator)

    def forward(self, value: Value) -> Tensor:
        x_BTD = bundle_of(value)[LONE_KEY]
        normed_BTD = F.rms_norm(x_BTD, (x_BTD.shape[-1],), self.norm_D, NORM_EPS)
        return F.linear(self.tensor_group.enter(normed_BTD), self.score_VD)

    def trace(self, value: Value) -> Value:
        shape = (*bundle_of(value)[LONE_KEY].shape[:2], len(self.score_VD))
        return self.score_VD.new_empty(shape, requires_grad=True)


def begin_with(blocks: Sequence[nn.Module], signs: TokenSigns) -> None:
    """Have rows begin with their token's signs beside its embedding."""
    for block in blocks:
        if isinstance(block, Embedding):
            block.signs = signs
            block.std = block.std if block.tied else BESIDE_SIGNS_STD


def narrow_writers(blocks: Sequence[nn.Module], subspace: Subspace, narrow: int) -> None:
    """Give blocks that write into a subspace matrices with `narrow` features there."""
    for block in blocks:
        if isinstance(block, Embedding):
            block.token_VD = _of_shape(block.token_VD, (-1, narrow))
            block.subspace = subspace
        elif isinstance(block, Layer):
            block.attention_out = _of_shape(block.attention_out, (narrow, -1))
            block.mlp_out = _of_shape(block.mlp_out, (narrow, -1))
            block.subspace = subspace


def _of_shape(parameter: nn.Parameter, shape: tuple[int, int]) -> nn.Parameter:
    """An empty one of the same kind; -1: as it was."""
    sizes = [was if size < 0 else size for was, size in zip(parameter.shape, shape, strict=True)]
    return nn.Parameter(torch.empty(sizes, dtype=parameter.dtype, device=parameter.device))


def _normal(parameter: nn.Parameter, std: float, generator: torch.Generator) -> None:
    parameter.normal_(0.0, std, generator=generator)


def _rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn each pair of features by its position's angle."""
    return x_BHTK * cos_TK + x_BHTK.roll(x_BHTK.shape[-1] // 2, -1) * sin_TK
