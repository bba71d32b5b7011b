"""A model out of the file of its weights, in one process: what it writes, and how well it predicts.

Shapes:  tokens_BT: B rows of T tokens; tokens_BS has S = T + 1 of them; V vocabulary.
Units:   nats per token.
Errors:  Unusable, one line, for a file that does not hold a run's weights.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from p2pswarm.compute.parameter_names import named_parameters
from p2pswarm.config import RunConfig
from p2pswarm.errors import BadMessage, Unusable
from p2pswarm.models.base import LONE_KEY, bundle_of, loss_of
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.chance import run_blocks
from p2pswarm.settings import run_from_json

BYTE_TOKENS = 256
FIRST = b"\n"  # what stands before a text begins; an empty prompt needs one token
EXPONENT_MAX = 700.0  # the exponential of more is no float


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a model predicts a text."""

    tokens: int
    loss: float

    @property
    def perplexity(self) -> float:
        """Among how many equally likely tokens the model wavers."""
        return math.exp(self.loss) if self.loss < EXPONENT_MAX else math.inf

    @property
    def bits_per_byte(self) -> float:
        """Of a text as bytes, where a token is a byte."""
        return self.loss / math.log(2)


class TrainedModel:
    """The whole model of a run, with its weights.

    `run` holds the settings that it was trained with.
    """

    def __init__(self, run: RunConfig, blocks: list[nn.Module]) -> None:
        self.run = run
        self._blocks = [block.eval() for block in blocks]  # dropout lets all pass

    @torch.inference_mode()
    def scores(self, tokens_BT: Tensor) -> Tensor:
        """The scores of the next token at each place; (B, T, V)."""
        return bundle_of(run_blocks(self._blocks, tokens_BT.to(torch.int64)))[LONE_KEY]

    @torch.inference_mode()
    def loss(self, tokens_BS: Tensor) -> float:
        """Mean nats per token."""
        tokens_BS = tokens_BS.to(torch.int64)
        return loss_of(self.scores(tokens_BS[:, :-1]), tokens_BS[:, 1:]).item()

    def evaluate(self, batches: Iterable[Tensor]) -> Quality:
        """How well it predicts all `batches` of tokens_BS together."""
        tokens, total = 0, 0.0
        for tokens_BS in batches:
            count = tokens_BS.shape[0] * (tokens_BS.shape[1] - 1)
            tokens += count
            total += self.loss(tokens_BS) * count
        if not tokens:
            raise Unusable("no text to evaluate on")
        return Quality(tokens, total / tokens)

    def generate(
        self, prompt: str, *, tokens: int = 200, temperature: float = 0.8, seed: int = 1
    ) -> Iterator[int]:
        """The bytes that go on from `prompt`, one at a time.

        At temperature 0 it is always the likeliest one. The model sees as many of the last tokens
        as a sequence had in training.
        """
        if self.run.model.vocabulary != BYTE_TOKENS:
            raise Unusable("this model was not trained on bytes: it has no tokenizer here")
        generator = torch.Generator().manual_seed(seed)
        seen = list(prompt.encode("utf-8", "replace") or FIRST)
        for _ in range(tokens):
            recent_BT = torch.tensor([seen[-self.run.model.sequence_length :]])
            scores_V = self.scores(recent_BT)[0, -1].double()
            seen.append(_drawn(scores_V, temperature, generator))
            yield seen[-1]


def load_model(path: str | Path) -> TrainedModel:
    """Read the file that a trainer wrote at the end of its run.

    Raises:
        p2pswarm.errors.Unusable: The file holds no weights of a run, or they do not fit its model.
    """
    try:
        with safe_open(path, "pt", "cpu") as file:
            about = (file.metadata() or {}).get("run")
            if about is None:
                raise Unusable(f"{path}: no weights of p2pswarm: it does not say of which run")
            run = run_from_json(about.encode())
            numbers = range(block_count(run.model))
            blocks = make_blocks(run, numbers)
            named = dict(named_parameters(numbers, blocks))
            there = set(file.keys())
            if unlike := sorted(there ^ named.keys()):
                what = "lacks" if unlike[0] in named else "has"
                raise Unusable(f"{path}: does not fit its model: it {what} {unlike[0]}")
            for name, parameter in named.items():
                _fill(parameter, file.get_tensor(name), f"{path}: {name}")
    except BadMessage as error:
        raise Unusable(f"{path}: {error}") from error
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise Unusable(f"{path}: cannot be read as safetensors: {reason}") from error
    return TrainedModel(run, blocks)


def _fill(parameter: nn.Parameter, tensor: Tensor, where: str) -> None:
    if parameter.shape != tensor.shape:
        raise Unusable(f"{where} is {list(tensor.shape)}, its model has {list(parameter.shape)}")
    with torch.no_grad():
        parameter.copy_(tensor)


def _drawn(scores_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(scores_V.argmax())
    chances_V = torch.softmax((scores_V - scores_V.max()) / temperature, 0)
    if not torch.isfinite(chances_V).all():
        raise Unusable("the model's scores are no numbers: its weights are spoilt")
    return int(torch.multinomial(chances_V, 1, generator=generator))
