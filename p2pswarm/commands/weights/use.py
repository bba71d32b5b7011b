"""The work of `p2pswarm generate` and `p2pswarm evaluate`.

Errors:  Unusable for weights or text that cannot be used.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.template import template_beside
from p2pswarm.data.samples.corpus import held_out_passes
from p2pswarm.models.compute.inference import (
    Quality,
    Sampling,
    TrainedModel,
    load_model,
    template_of_weights,
)
from p2pswarm.models.registry import is_place, package_of
from p2pswarm.node.run.dataset_commits import with_commits
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.objective import ORPO, ObjectiveConfig

LAYOUT = frozenset("\n\t")


def shown(text: str) -> str:
    """A text whose control characters, but for line breaks and tabs, move no cursor."""
    return "".join(x if x.isprintable() or x in LAYOUT else "\ufffd" for x in text)


def chat(
    model: TrainedModel,
    weights: Path,
    lines: Iterable[str],
    write: Callable[[str], None],
    *,
    tokens: int,
    seed: int,
    how: Sampling,
) -> None:
    """Answer each line as a message of one chat; the template lies beside the weights."""
    template, messages = template_of_weights(weights), list[dict[str, Any]]()
    if template is None:
        raise Unusable(
            f"{template_beside(weights)}: is not there: a run that trains on chats writes it; "
            "without it leave --chat out"
        )
    for line in lines:
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line.rstrip("\n")})
        answer = ""
        for piece in model.answer(messages, template, tokens=tokens, how=how, seed=seed):
            answer += piece
            write(shown(piece))
        write("\n")
        messages.append({"role": "assistant", "content": answer})


def evaluate(
    weights: Path,
    settings: Path,
    config: NodeConfig,
    tokens_max: int,
    tell: Callable[[str], None],
    base: str | None = None,
) -> "TextQualities":
    """Return how well the weights predict the held-out text of `config`, which `settings` has.

    `base`: the model that an adapter stands on, as `load_model` takes it.
    """
    family = config.run.model.family  # by the user's own settings its code may be run
    model = load_model(weights, [package_of(family)] if is_place(family) else (), base)
    return evaluated(model, settings, config, tokens_max, tell)


def evaluated(
    model: TrainedModel,
    settings: Path,
    config: NodeConfig,
    tokens_max: int,
    tell: Callable[[str], None],
) -> "TextQualities":
    """The same of a model that is here."""
    config = with_commits(config)
    config = dataclasses.replace(config, run=_reading(model.run, settled(config).run))
    tokenizer = model.tokenizer or tokenizer_of(config)
    digest = tokenizer.digest if tokenizer else ""
    if digest != model.run.model.tokenizer:
        raise Unusable(
            f"{settings}: train.tokenizer (or train.special_tokens) is not that of the weights: "
            "name it, or put its file beside them"
        )
    if tokenizer:
        tokenizer = tokenizer.ending_with(model.run.model.document_end)
        tokenizer = tokenizer.beginning_with(model.run.model.document_begin)
    corpus = read_corpus(config, tokenizer)
    about, unit = "" if corpus.counted else "about ", "bytes"
    if tokenizer and corpus.counted:
        unit = "tokens"
    tell(f"{about}{len(corpus.held_out):,} {unit} are held out")
    texts = []
    for named, part, batches in zip(
        config.train.parts, corpus.parts, held_out_passes(corpus, tokens_max), strict=True
    ):
        quality = model.evaluate(torch.from_numpy(tokens_BS) for tokens_BS in batches)
        bytes_per_token = part.corpus.bytes_per_token
        found = dataclasses.replace(quality, bytes_per_token=bytes_per_token)
        texts.append((str(named.data), found))
    return TextQualities(tuple(texts))


def _reading(run: RunConfig, asked: RunConfig) -> RunConfig:
    """The run of weights, as it would read the text of another; chats and pairs by their rows."""
    if not asked.objective.prefers:
        samples = "whole" if asked.batch.samples == "whole" else run.batch.samples
        batch = dataclasses.replace(run.batch, samples=samples)
        return dataclasses.replace(run, objective=ObjectiveConfig(), batch=batch)
    batch = dataclasses.replace(run.batch, samples="whole", rows=2)
    model = dataclasses.replace(run.model, router_loss=False)
    objective = ObjectiveConfig(name=ORPO)  # whose rows carry no references
    return dataclasses.replace(run, objective=objective, batch=batch, model=model)


@dataclass(frozen=True, slots=True)
class TextQualities:
    """Quality of weights on each text of a mixture, or on the only one."""

    texts: tuple[tuple[str, Quality], ...]

    @property
    def whole(self) -> Quality:
        """All texts together."""
        found = [each for _, each in self.texts]
        tokens = sum(each.tokens for each in found)
        loss = sum(each.loss * each.tokens for each in found) / tokens
        sizes = [each.bytes_per_token for each in found]
        known = [size * each.tokens for size, each in zip(sizes, found, strict=True) if size]
        return Quality(tokens, loss, sum(known) / tokens if all(sizes) else None)


def as_json(found: TextQualities) -> str:
    """One line for scripts."""
    figures = _figures(found.whole)
    if len(found.texts) > 1:
        figures["texts"] = [{"data": name, **_figures(each)} for name, each in found.texts]
    return json.dumps(figures)


def as_text(found: TextQualities) -> str:
    """A line for people, and one for each text of a mixture."""
    lines = [_line(found.whole)]
    if len(found.texts) > 1:
        lines += [f"  {name}: {_line(each)}" for name, each in found.texts]
    return "\n".join(lines)


def _figures(found: Quality) -> dict[str, object]:
    return {
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
    }


def _line(found: Quality) -> str:
    one = "byte" if found.bytes_per_token == 1 else "token"
    bits = "" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f} bits a byte, "
    return (
        f"loss {found.loss:.4f} nats a {one}, perplexity {found.perplexity:.3f}, "
        f"{bits}over {found.tokens:,} {one}s"
    )
