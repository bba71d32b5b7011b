"""What `p2pswarm generate` and `p2pswarm evaluate` do.

Errors:  Unusable for weights or text that cannot be used.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from p2pswarm.compute.trained_model import Quality, load_model
from p2pswarm.data.held_out_pass import held_out_pass
from p2pswarm.errors import Unusable
from p2pswarm.roles.run_text import read_corpus, tokenizer_of
from p2pswarm.settings import load

LAYOUT = frozenset("\n\t")


def generate(
    weights: Path, prompt: str, tokens: int, temperature: float, seed: int
) -> Iterator[str]:
    """Pieces of text that go on from `prompt`, as a terminal may show them."""
    model = load_model(weights)
    for piece in model.generate_text(prompt, tokens=tokens, temperature=temperature, seed=seed):
        yield _shown(piece)


def evaluate(
    weights: Path, settings: Path, tokens_max: int, tell: Callable[[str], None]
) -> Quality:
    """How well the weights predict the held-out text of a trainer's settings."""
    model = load_model(weights)
    config = dataclasses.replace(load(settings), run=model.run)
    if not config.train.parts:
        raise Unusable(f"{settings}: train.data is missing: name the text that is held out from")
    tokenizer = model.tokenizer or tokenizer_of(config)
    digest = tokenizer.digest if tokenizer else ""
    if digest != model.run.model.tokenizer:
        raise Unusable(
            f"{settings}: train.tokenizer is not that of the weights: name it, or put its file "
            "beside them"
        )
    corpus = read_corpus(config, tokenizer)
    unit = "tokens" if tokenizer else "bytes"
    about = "about " if corpus.blocks else ""
    tell(f"{about}{len(corpus.held_out):,} {unit} are held out")
    found = model.evaluate(torch.from_numpy(x) for x in held_out_pass(corpus, tokens_max))
    return dataclasses.replace(found, bytes_per_token=corpus.bytes_per_token)


def as_json(found: Quality) -> str:
    """One line for scripts."""
    figures = {
        "tokens": found.tokens,
        "loss": found.loss,
        "perplexity": found.perplexity,
        "bits_per_byte": found.bits_per_byte,
    }
    return json.dumps(figures)


def as_text(found: Quality) -> str:
    """One line for people."""
    one = "byte" if found.bytes_per_token == 1 else "token"
    return (
        f"loss {found.loss:.4f} nats a {one}, perplexity {found.perplexity:.3f}, "
        f"{found.bits_per_byte:.4f} bits a byte, over {found.tokens:,} {one}s"
    )


def _shown(text: str) -> str:
    """A text whose control characters, but for line breaks and tabs, move no cursor."""
    return "".join(x if x.isprintable() or x in LAYOUT else "\ufffd" for x in text)
