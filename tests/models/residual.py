"""A model whose layers read more than x, as a list of blocks and as its authors would write it.

Every layer adds the embedded tokens again (x0) and looks values up by token id; what it takes of
both, and of x, stands in two vectors that all layers share. `Whole` is the plain model: one module
whose layers read its parameters. The blocks carry the vectors, x0 and the ids in the bundle.

Shapes:  B rows, T tokens, D width, L layers, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

from p2pswarm.models.base import Block, Bundle
from p2pswarm.models.registry import register
from p2pswarm.settings.config import ModelConfig

FAMILY = "residual"
CAP = 15.0  # of the scores: they end in a soft cap


class Layer(nn.Module):
    """Attention whose values are looked up by token, too, and a small perceptron."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        width = config.d_model
        self.heads, self.number = config.heads, number
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.values = nn.Embedding(config.vocabulary, width)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(
        self, x: Tensor, first: Tensor, tokens: Tensor, of_x: Tensor, of_first: Tensor
    ) -> Tensor:
        """`of_x` and `of_first`: [L], what each layer takes."""
        x = of_x[self.number] * x + of_first[self.number] * first
        rows, length, width = x.shape
        q, k, v = self.qkv(F.rms_norm(x, (width,))).split(width, dim=-1)
        shape = rows, length, self.heads, width // self.heads
        q, k, v = (one.view(shape).transpose(1, 2) for one in (q, k, v + self.values(tokens)))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (width,)))).square())


class Scalars(nn.Module):
    """The two vectors that all layers share: [L]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.of_x = nn.Parameter(torch.empty(layers))
        self.of_first = nn.Parameter(torch.empty(layers))


class Start(Block):
    """Embeds the tokens, and gives what later layers read."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.scalars = Scalars(config.layers)

    def draw(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.embedding.weight, std=1.0, generator=generator)
        nn.init.constant_(self.scalars.of_x, 1.0)
        nn.init.constant_(self.scalars.of_first, 0.1)

    def forward(self, tokens: Tensor) -> Bundle:
        x = F.rms_norm(self.embedding(tokens), self.embedding.weight.shape[1:])
        scalars = {"of_x": self.scalars.of_x, "of_first": self.scalars.of_first}
        return {"x": x, "first": x, "tokens": tokens, **scalars}


class Middle(Block):
    """One layer; the rest of the bundle goes on."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        self.layer = Layer(config, number)

    def draw(self, generator: torch.Generator) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2, generator=generator)

    def forward(self, bundle: Bundle) -> Bundle:
        return {**bundle, "x": self.layer(*bundle.values())}


class End(Block):
    """The scores of the next token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.d_model, config.vocabulary, bias=False)

    def draw(self, generator: torch.Generator) -> None:
        nn.init.normal_(self.head.weight, std=0.1, generator=generator)

    def forward(self, bundle: Bundle) -> Tensor:
        return capped(self.head(F.rms_norm(bundle["x"], bundle["x"].shape[-1:])))


@register(FAMILY)
def residual(config: ModelConfig) -> list[nn.Module]:
    """Start, layers, end."""
    middle = [Middle(config, number) for number in range(config.layers)]
    return [Start(config), *middle, End(config)]


class Whole(nn.Module):
    """The same model, not cut: layers read its parameters where they are."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.scalars = Scalars(config.layers)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.layers))
        self.head = nn.Linear(config.d_model, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = first = F.rms_norm(self.embedding(tokens), self.embedding.weight.shape[1:])
        for layer in self.layers:
            x = layer(x, first, tokens, self.scalars.of_x, self.scalars.of_first)
        return capped(self.head(F.rms_norm(x, x.shape[-1:])))


def capped(scores: Tensor) -> Tensor:
    """Scores within a soft cap."""
    return CAP * torch.tanh(scores / CAP)
