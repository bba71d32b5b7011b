"""The transformer as a list of blocks, cut into stages.

Block 0 turns tokens into vectors, the blocks between are pre-norm transformer layers with
rotary positions, the last one is the head. A block's first weights are a function of (seed, its
index) alone, so whoever serves a stage can make version 0 of it, and one process can make all of
it for comparison. Matrices start at variance 1/D: at D = 128 that learns half as long again as
GPT-2's fixed 0.02 would (bench/LOG.md).

Shapes:  B rows, T tokens a row, D features, H heads, K features a head, V vocabulary.
Errors:  ValueError for a stage that the run has not; the config has checked the rest.
Source:  rotary positions: arXiv 2104.09864; RMSNorm: arXiv 1910.07467; squared ReLU: arXiv
         2109.08668; depth-scaled output projections: GPT-2.
"""
# ruff: noqa: D102, N803, N806  forward and draw say it in `Block`; shapes end the names

import hashlib
import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

from p2pswarm.config import ModelConfig, RunConfig

DTYPES = {"float32": torch.float32, "float64": torch.float64}
MLP_RATIO = 4  # hidden features of the MLP over D, as in GPT-2
ROTARY_BASE = 10_000.0  # of the paper
NORM_EPS = 1e-6


class Block(nn.Module, ABC):
    """One entry of the list; `forward` takes what the block before it made."""

    @abstractmethod
    def draw(self, generator: torch.Generator) -> None:
        """Fill the parameters with their first values."""


class Embedding(Block):
    """Tokens to vectors."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        self.token_VD = nn.Parameter(torch.empty(model.vocabulary, model.d_model, dtype=dtype))

    def draw(self, generator: torch.Generator) -> None:
        _normal(self.token_VD, 1.0, generator)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return F.embedding(tokens_BT, self.token_VD)


class Layer(Block):
    """Attention and MLP, each on a normed copy that is added back."""

    def __init__(self, model: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        width, hidden = model.d_model, MLP_RATIO * model.d_model
        self.heads, self.layers = model.heads, model.layers

        def matrix(rows: int, columns: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(rows, columns, dtype=dtype))

        self.attention_norm_D = nn.Parameter(torch.empty(width, dtype=dtype))
        self.qkv = matrix(3 * width, width)
        self.attention_out = matrix(width, width)
        self.mlp_norm_D = nn.Parameter(torch.empty(width, dtype=dtype))
        self.mlp_in = matrix(hidden, width)
        self.mlp_out = matrix(width, hidden)
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

    def forward(self, x_BTD: Tensor) -> Tensor:
        rows, length, width = x_BTD.shape
        normed_BTD = F.rms_norm(x_BTD, (width,), self.attention_norm_D, NORM_EPS)
        qkv = F.linear(normed_BTD, self.qkv).view(rows, length, 3, self.heads, -1)
        q_BHTK, k_BHTK, v_BHTK = qkv.permute(2, 0, 3, 1, 4)
        cos_TK, sin_TK = self._angles(x_BTD, q_BHTK.shape[-1])
        attended_BHTK = F.scaled_dot_product_attention(
            _rotate(q_BHTK, cos_TK, sin_TK), _rotate(k_BHTK, cos_TK, sin_TK), v_BHTK, is_causal=True
        )
        joined_BTD = attended_BHTK.transpose(1, 2).reshape(rows, length, width)
        x_BTD = x_BTD + F.linear(joined_BTD, self.attention_out)
        normed_BTD = F.rms_norm(x_BTD, (width,), self.mlp_norm_D, NORM_EPS)
        hidden = F.relu(F.linear(normed_BTD, self.mlp_in)).square()
        return x_BTD + F.linear(hidden, self.mlp_out)

    def _angles(self, x_BTD: Tensor, features: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's rotation, made once a length."""
        length = x_BTD.shape[1]
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
        self.norm_D = nn.Parameter(torch.empty(model.d_model, dtype=dtype))
        self.score_VD = nn.Parameter(torch.empty(model.vocabulary, model.d_model, dtype=dtype))

    def draw(self, generator: torch.Generator) -> None:
        self.norm_D.fill_(1.0)
        _normal(self.score_VD, self.score_VD.shape[1] ** -0.5, generator)

    def forward(self, x_BTD: Tensor) -> Tensor:
        normed_BTD = F.rms_norm(x_BTD, (x_BTD.shape[-1],), self.norm_D, NORM_EPS)
        return F.linear(normed_BTD, self.score_VD)


def loss_of(scores_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean nats per token."""
    return F.cross_entropy(scores_BTV.flatten(0, 1), targets_BT.flatten())


def block_count(model: ModelConfig) -> int:
    """Embedding, layers, head."""
    return model.layers + 2


def make_blocks(run: RunConfig, numbers: range) -> list[Block]:
    """The blocks `numbers` of the model, with storage but without values."""
    model, dtype = run.model, DTYPES[run.model.dtype]
    last = block_count(model) - 1
    kinds = {0: Embedding, last: Head}
    return [kinds.get(number, Layer)(model, dtype) for number in numbers]


@torch.no_grad()
def draw_blocks(run: RunConfig, numbers: range, blocks: list[Block]) -> None:
    """Version 0 of the blocks `numbers`: the same wherever it is made."""
    for number, block in zip(numbers, blocks, strict=True):
        tag = f"p2pswarm-init-1:{run.seed}:{number}".encode()
        seed = int.from_bytes(hashlib.sha256(tag).digest()[:8])
        block.draw(torch.Generator().manual_seed(seed % 2**63))


def stage_blocks(run: RunConfig, stage: int) -> range:
    """The numbers of the blocks that stage `stage` of `run.stages` serves.

    Contiguous, at least one each, and the costliest stage as cheap as it can be.
    """
    costs = [block_cost(run.model, number) for number in range(block_count(run.model))]
    if not 0 <= stage < run.stages:
        raise ValueError(f"stage {stage} of {run.stages}")
    borders = _cut(costs, run.stages)
    return range(borders[stage], borders[stage + 1])


def block_cost(model: ModelConfig, number: int) -> int:
    """Multiplications per token, forward."""
    if number == 0:
        return model.d_model  # a look-up
    if number == block_count(model) - 1:
        return model.d_model * model.vocabulary
    attention = 2 * model.d_model * model.sequence_length
    return (4 + 2 * MLP_RATIO) * model.d_model**2 + attention


def _cut(costs: list[int], stages: int) -> list[int]:
    """Borders of the cut whose costliest part is cheapest; the earliest of equals."""
    count = len(costs)
    sums = [0]
    for cost in costs:
        sums.append(sums[-1] + cost)
    best = [[0] * (count + 1) for _ in range(stages + 1)]
    came = [[0] * (count + 1) for _ in range(stages + 1)]
    best[0] = [0] + [sums[-1] + 1] * count
    for parts in range(1, stages + 1):
        best[parts][0] = sums[-1] + 1
        for end in range(1, count + 1):
            tries = [
                (max(best[parts - 1][start], sums[end] - sums[start]), start)
                for start in range(parts - 1, end)
            ] or [(sums[-1] + 1, 0)]
            best[parts][end], came[parts][end] = min(tries)
    borders = [count]
    for parts in range(stages, 0, -1):
        borders.append(came[parts][borders[-1]])
    return borders[::-1]


def _normal(parameter: nn.Parameter, std: float, generator: torch.Generator) -> None:
    """Drawn on the CPU, so that every device begins with the same values."""
    drawn = torch.empty(parameter.shape, dtype=parameter.dtype)
    parameter.copy_(drawn.normal_(0.0, std, generator=generator))


def _rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Turn each pair of features by its position's angle."""
    return x_BHTK * cos_TK + x_BHTK.roll(x_BHTK.shape[-1] // 2, -1) * sin_TK
