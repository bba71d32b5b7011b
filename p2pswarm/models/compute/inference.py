"""Trained weights as a model that predicts and writes, in one process.

Shapes:  tokens_BT: B rows of T tokens; tokens_BS has S = T + 1 of them; V vocabulary. scores_V: one
         for each of V tokens; a higher one is likelier.
Source:  top-p: arxiv.org/abs/1904.09751, "nucleus sampling"; top-k as in transformers.
"""
# ruff: noqa: N803, N806  shapes are written at the end of names

import codecs
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from p2pswarm.base.errors import BadMessage, Unusable, one_line
from p2pswarm.base.files import refuse_pointer
from p2pswarm.checkpoint.weights_name import AVERAGE_ENDING, file_of
from p2pswarm.data.chats.targets import refuse_forged
from p2pswarm.data.chats.template import (
    AnswerFrame,
    ChatTemplate,
    kept_template,
    template_beside,
)
from p2pswarm.data.sources import TOKENIZER_FILE
from p2pswarm.data.tokenizer import Tokenizer, tokenizer_beside, tokenizer_of_run
from p2pswarm.models.base import LONE_KEY, bundle_of
from p2pswarm.models.base_weights.base_memory import BaseMemory
from p2pswarm.models.blocks import bare_blocks, block_count
from p2pswarm.models.compute.flat_parameters import (
    bind,
    block_layout,
    named_parameters,
    zero_buffer,
)
from p2pswarm.models.compute.tokens import first_value, labels_of, targets_in
from p2pswarm.models.document_positions import APART
from p2pswarm.models.dropout import run_blocks
from p2pswarm.models.library.foreign_code import foreign
from p2pswarm.models.losses.cross_entropy import nats_of
from p2pswarm.models.pretrained import offer_base
from p2pswarm.models.registry import NotTrusted, trust
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.parser import stored_run

BYTE_TOKENS = 256
CPU = torch.device("cpu")
FIRST = b"\n"  # what stands before a text begins; an empty prompt needs one token
EXPONENT_MAX = 700.0  # the exponential of more is no float


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How a token is drawn."""

    temperature: float = 0.8
    """0: always the likeliest; 1: as likely as in the text that was learnt."""
    top_k: int = 0
    """Only among so many of the likeliest; 0: among all."""
    top_p: float = 1.0
    """Only among the likeliest that have this chance together, one at least."""


def drawn(scores_V: Tensor, how: Sampling, generator: torch.Generator) -> int:
    """A token."""
    if not torch.isfinite(scores_V.max()):  # NaN wins every comparison
        raise Unusable("the model's scores are no numbers: its weights are spoilt")
    if how.temperature == 0:
        return int(scores_V.argmax())
    likeliest_V, tokens_V = scores_V.sort(descending=True, stable=True)
    if how.top_k:
        likeliest_V, tokens_V = likeliest_V[: how.top_k], tokens_V[: how.top_k]
    chances_V = torch.softmax((likeliest_V - likeliest_V[0]) / how.temperature, 0)
    before_V = chances_V.cumsum(0) - chances_V
    before_V[0] = 0.0  # the likeliest stays, whatever rounding says
    chances_V = chances_V.where(before_V < max(how.top_p, torch.finfo(chances_V.dtype).tiny), 0.0)
    return int(tokens_V[torch.multinomial(chances_V, 1, generator=generator)])


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a model predicts a text."""

    tokens: int
    loss: float
    bytes_per_token: float | None = 1.0
    """Of the text; 1 where a token is a byte. None where some tokens are no targets."""

    @property
    def perplexity(self) -> float:
        """The number of equally likely tokens among which the model wavers."""
        return math.exp(self.loss) if self.loss < EXPONENT_MAX else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """The loss in bits per byte, by which models with different tokenizers can be compared.

        None if it is the loss of some tokens alone: nobody has counted their bytes.
        """
        if self.bytes_per_token is None:
            return None
        return self.loss / math.log(2) / self.bytes_per_token


class TrainedModel:
    """The whole model of a run, with its weights and settings.

    `tokenizer` is None where a token is a byte, or where its file is not beside the weights.
    """

    def __init__(
        self, run: RunConfig, blocks: list[nn.Module], tokenizer: Tokenizer | None = None
    ) -> None:
        self.run = run
        self.tokenizer = tokenizer
        self.blocks = [block.eval() for block in blocks]  # dropout lets all pass

    @torch.inference_mode()
    def scores(self, tokens_BT: Tensor) -> Tensor:
        """The scores of the next token at each place; (B, T, V). Tokens may have marks."""
        with foreign(f"the model {self.run.model.family} cannot be computed"):
            first = first_value(tokens_BT.to(torch.int64), self.run.model)
            return bundle_of(run_blocks(self.blocks, first))[LONE_KEY]

    @torch.inference_mode()
    def nats(self, tokens_BS: Tensor) -> float:
        """The loss of all targets together."""
        tokens_BS = tokens_BS.to(torch.int64)
        return nats_of(self.scores(tokens_BS[:, :-1]), labels_of(tokens_BS)).item()

    def evaluate(self, batches: Iterable[Tensor]) -> Quality:
        """Return how well it predicts all `batches` of tokens_BS together."""
        targets, nats = 0, 0.0
        for tokens_BS in batches:
            targets += targets_in(tokens_BS)
            nats += self.nats(tokens_BS)
        if not targets:
            raise Unusable("no text to evaluate on")
        return Quality(targets, nats / targets)

    def generate(
        self,
        prompt: str,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1,
    ) -> Iterator[int]:
        """The tokens that go on from `prompt`, one at a time; bytes, if it was trained on them.

        It ends early where the model ends the text. At temperature 0 it is always the likeliest
        one; else one of the `top_k` likeliest (0: of all), and of those that have the chance
        `top_p` together. The model sees as many of the last tokens as a sequence had in training.
        """
        how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        ends = frozenset({self.run.model.document_end})
        yield from self._continued(self._tokens_of(prompt), ends, tokens, how, seed)

    def answer(
        self,
        messages: list[dict[str, Any]],
        template: ChatTemplate,
        *,
        tokens: int = 200,
        how: Sampling | None = None,
        seed: int = 1,
    ) -> Iterator[str]:
        """Yield what the assistant says next in a chat, in pieces of text.

        It ends early where the model ends its turn. What the template writes before an answer, such
        as the name of a channel, is left out. Unusable without a tokenizer.
        """
        if self.tokenizer is None:
            raise Unusable("chats need a tokenizer, and these weights were trained on bytes")
        reading = self.tokenizer.reading_special()
        refuse_forged(messages, reading.special_names)
        seen = reading.encode([template.prompt(messages).encode("utf-8", "replace")])[0].tolist()
        frame = template.answer_frame(reading.special_names)
        ends = frame.ends | {self.run.model.document_end}
        found = self._continued(seen, ends, tokens, how or Sampling(), seed)
        yield from _text_in(frame, found, [*seen], self.tokenizer)

    def _continued(
        self, seen: list[int], ends: frozenset[int], tokens: int, how: Sampling, seed: int
    ) -> Iterator[int]:
        """At most so many tokens that go on from those that were seen, to one of `ends`."""
        generator = torch.Generator().manual_seed(seed)
        length = self.run.model.sequence_length
        known = BYTE_TOKENS if self.tokenizer is None else self.tokenizer.size
        for _ in range(tokens):
            recent_BT = torch.tensor([seen[-length:]])
            scores_V = self.scores(recent_BT)[0, -1, :known]  # a vocabulary may be rounded up
            seen.append(drawn(scores_V.double(), how, generator))
            if seen[-1] in ends:
                return
            yield seen[-1]

    def generate_text(
        self,
        prompt: str,
        *,
        tokens: int = 200,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 1,
    ) -> Iterator[str]:
        """Yield what goes on from `prompt`, in pieces of text; as `generate`."""
        found = self.generate(
            prompt, tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
        )
        if self.tokenizer is not None:
            yield from self.tokenizer.decode(found, self._tokens_of(prompt))
            return
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in found:
            yield decoder.decode(bytes([token]))
        yield decoder.decode(b"", final=True)

    def _tokens_of(self, prompt: str) -> list[int]:
        text = prompt.encode("utf-8", "replace")
        if self.tokenizer is None:
            if self.run.model.tokenizer:
                raise Unusable(
                    "the tokenizer that this model was trained with is not here: put the file "
                    f"that the run wrote beside its weights, NAME.{TOKENIZER_FILE}, back there"
                )
            return list(text or FIRST)
        begin, end = self.run.model.document_begin, self.run.model.document_end
        tokens: list[int] = self.tokenizer.encode([text])[0].tolist()
        tokens = tokens if begin < 0 else [begin, *tokens]
        if end >= 0 and (not tokens or self.run.model.documents == APART):
            return [end, *tokens]  # where documents are apart, each was seen to begin so
        tokens = tokens or self.tokenizer.encode([FIRST])[0].tolist()
        if not tokens:
            raise Unusable("the prompt has no tokens: name a text that the tokenizer knows")
        return tokens


def _text_in(
    frame: AnswerFrame, tokens: Iterator[int], after: list[int], tokenizer: Tokenizer
) -> Iterator[str]:
    """The text of an answer's tokens, without what opens it; `after`: the tokens before them.

    Once it was opened, it also ends as answers do after which a chat goes on. Before, that may end
    a thought.
    """
    opening, held, written = frame.opening, list[int](), ""
    while opening.startswith(written) and len(written) < len(opening):
        if (token := next(tokens, None)) is None:
            break
        held.append(token)
        written = tokenizer.written(held)
    if written.startswith(opening):
        after, held = [*after, *held], []
        tokens = itertools.takewhile(lambda token: token not in frame.inner_ends, tokens)
        if rest := written.removeprefix(opening):  # a token may go on behind it
            yield rest
    yield from tokenizer.decode(itertools.chain(held, tokens), after)


def load_model(
    path: str | Path,
    packages: Iterable[str] = (),
    base: str | Path | None = None,
    *,
    original: bool = False,
) -> TrainedModel:
    """Read the file that a trainer wrote at the end of its run.

    Args:
        path: The file, the name for it in the run's settings, or a folder with one, such as
            `p2pswarm export` makes of a model of ours.
        packages: Packages whose code may be run for it: its model may be a function of one.
        base: Of a run that trained an adapter, or part of a model: the folder of the model that it
            began with, or "hf:NAME" of the hub, which is downloaded then.
        original: Take the base as its files have it, also if the run quantised it.

    Raises:
        p2pswarm.base.errors.Unusable: The file holds no weights, or they do not fit the model.
    """
    trust(packages)
    path = file_of(Path(path))
    with opened_weights(path, original=original) as (file, saved, blocks):
        run = offer_base(saved, base) if saved.has_base else saved
        numbers = range(len(blocks))
        layout = block_layout(run, numbers, blocks)
        bind(blocks, layout, zero_buffer(layout, run.model.dtype, CPU))
        if run.has_base:
            BaseMemory(run, numbers, blocks, CPU).fill()
        for name, parameter in named_parameters(numbers, blocks):
            _fill(parameter, file.get_tensor(name))
    return TrainedModel(run, blocks, tokenizer_of_weights(path, run.model))


def plain_run(run: RunConfig) -> RunConfig:
    """The run of a model whose adapters are merged."""
    return dataclasses.replace(run, adapter=None, frozen=(), base="full")


def plain_model(model: TrainedModel, tensors: Mapping[str, Tensor]) -> TrainedModel:
    """The model itself, without adapters, of tensors by their names in it."""
    run = plain_run(model.run)
    numbers = range(len(model.blocks))
    blocks = bare_blocks(run, numbers, CPU)
    layout = block_layout(run, numbers, blocks)
    bind(blocks, layout, zero_buffer(layout, run.model.dtype, CPU))
    for name, parameter in named_parameters(numbers, blocks):
        _fill(parameter, tensors[name])
    return TrainedModel(run, blocks, model.tokenizer)


@contextmanager
def opened_weights(
    path: Path, *, original: bool = False
) -> Iterator[tuple[Any, RunConfig, list[nn.Module]]]:
    """A file of trained weights, its run, and all blocks of the model, without memory for weights.

    `original`: of a base that is not quantised.

    What the file holds is what trains of these blocks. Unusable if it does not, or is no such file.
    """
    refuse_pointer(path)
    try:
        with safe_open(path, "pt", "cpu") as file:
            about = (file.metadata() or {}).get("run")
            if about is None:
                raise Unusable(
                    f"{path}: no weights of p2pswarm: it does not say of which run: name the file "
                    "that the run wrote; from_pretrained of transformers loads what export made"
                )
            run = stored_run(about.encode())
            run = dataclasses.replace(run, base="full") if original else run
            numbers = range(block_count(run.model))
            blocks = bare_blocks(run, numbers, CPU)
            named = dict(named_parameters(numbers, blocks))
            there = set(file.keys())
            if unlike := sorted(there ^ named.keys()):
                what = "lacks" if unlike[0] in named else "has"
                raise Unusable(f"{path}: does not fit its model: it {what} {unlike[0]}")
            for name, parameter in named.items():  # before memory is taken for them
                _require_shape(parameter, file.get_slice(name).get_shape(), f"{path}: {name}")
            yield file, run, blocks
    except BadMessage as error:
        raise Unusable(f"{path}: {error}") from error
    except NotTrusted as error:
        raise Unusable(
            f"{path}: its model is code of the package {error.package}: if you trust it, say "
            f'--package {error.package}, or p2pswarm.load(FILE, packages=["{error.package}"])'
        ) from error
    except (OSError, SafetensorError) as error:
        reason = one_line(error)
        raise Unusable(
            f"{path}: cannot be read as safetensors: {reason}: copy it again, or name the file "
            "that a trainer wrote"
        ) from error


def tokenizer_of_weights(weights: Path, model: ModelConfig) -> Tokenizer | None:
    """The tokenizer beside the weights, or in their folder; None if it is neither there."""
    if not model.tokenizer:
        return None
    beside = (tokenizer_beside(name) for name in names_of_run(weights))
    for place in (*beside, weights.with_name(TOKENIZER_FILE)):
        if place.is_file():
            found = tokenizer_of_run(place, model.tokenizer, model.document_end)
            if found is None:
                raise Unusable(
                    f"{place}: not the tokenizer that these weights were trained with: put that "
                    "one here"
                )
            return found
    return None


def template_of_weights(weights: Path) -> ChatTemplate | None:
    """The template of chats beside the weights; None if there is none."""
    places = (template_beside(name) for name in names_of_run(weights))
    return next((kept_template(place) for place in places if place.is_file()), None)


def names_of_run(weights: Path) -> tuple[Path, Path]:
    """The file itself, and the one of which it is the average: both have the same tokenizer."""
    return weights, weights.with_stem(weights.stem.removesuffix(AVERAGE_ENDING))


def _require_shape(parameter: nn.Parameter, shape: list[int], where: str) -> None:
    if list(parameter.shape) != shape:
        raise Unusable(f"{where} is {shape}, its model has {list(parameter.shape)}")


def _fill(parameter: nn.Parameter, tensor: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(tensor)
