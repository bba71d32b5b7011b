"""A family whose bundle has three keys, two of which skip a stage."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  everybody's name for it

from p2pswarm.models.base import Bundle
from p2pswarm.models.registry import register
from p2pswarm.settings.config import ModelConfig, RunConfig

MARKS = 4
RUN = RunConfig(model=ModelConfig(d_model=16, sequence_length=12))
_numbers = itertools.count()


def run_of(makes: Sequence[Callable[[], nn.Module]], stages: int = 1) -> RunConfig:
    """A run of a family of its own, of the blocks that `makes` make."""

    def build(config: ModelConfig) -> list[nn.Module]:
        del config
        return [make() for make in makes]

    name = f"test {next(_numbers)}"
    register(name)(build)
    return replace(RUN, stages=stages, model=replace(RUN.model, family=name))


class Start(nn.Module):
    """Makes an activation, a memory and marks."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.cost = 1.0
        self.token = nn.Embedding(config.vocabulary, config.d_model)
        self.memory = nn.Linear(config.d_model, config.d_model // 2)

    def forward(self, tokens_bt: Tensor) -> Bundle:
        x = self.token(tokens_bt)
        return {"x": x, "memory": self.memory(x), "marks": tokens_bt % MARKS}


class Between(nn.Module):
    """Works on the activation alone, and passes the rest on."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.cost = 1.0
        self.inner = nn.Sequential(nn.Linear(config.d_model, config.d_model), nn.Tanh())
        self.register_buffer("share", torch.tensor(0.5), persistent=False)

    def forward(self, bundle: Bundle) -> Bundle:
        return {**bundle, "x": bundle["x"] + self.share * self.inner(bundle["x"])}


class End(nn.Module):
    """Uses all three."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.cost = 1.0
        self.mark = nn.Embedding(MARKS, config.d_model // 2)
        self.score = nn.Linear(2 * config.d_model, config.vocabulary)

    def forward(self, bundle: Bundle) -> Tensor:
        marks = self.mark(bundle["marks"])
        return self.score(F.relu(torch.cat((bundle["x"], bundle["memory"], marks), -1)))


@register("skipping")
def skipping(config: ModelConfig) -> Sequence[nn.Module]:
    """Three blocks, and so at most three stages."""
    return [Start(config), Between(config), End(config)]
