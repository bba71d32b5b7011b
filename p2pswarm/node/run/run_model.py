"""The model of a trainer's settings as its manifest names it, checked before anything is started.

Errors:  Unusable, one line with the remedy.
"""

import dataclasses

from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.models.compute.bundle_spec import check_model
from p2pswarm.models.compute.model_check import check_once
from p2pswarm.models.document_masks import APART
from p2pswarm.models.hf_library import VOCABULARY_MAX
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.config import HF, RunConfig

BYTE_TOKENS = 256


def checked_model(run: RunConfig, tokenizer: Tokenizer | None = None) -> RunConfig:
    """The run with its model as the manifest names it; Unusable for one that cannot be cut."""
    run = resolved(run if tokenizer is None else tokenised_run(run, tokenizer))
    if tokenizer is not None and tokenizer.size > run.model.vocabulary:
        raise Unusable(
            f"train.tokenizer has {tokenizer.size:,} tokens and the model {run.model.vocabulary:,}:"
            " name the tokenizer that belongs to the model, or leave run.model.vocabulary out"
        )
    _check_documents(run)
    check_model(run)
    check_once(run)
    return run


def _check_documents(run: RunConfig) -> None:
    model = run.model
    if run.batch.samples == "packed" and model.document_end < 0:
        raise Unusable(
            'run.batch.samples = "packed" needs a token that ends a document: set train.tokenizer '
            'to one that has it, such as "train:32000"'
        )
    if model.documents != APART:
        return
    if model.family != "gpt" and not model.family.startswith(HF):
        raise Unusable(
            f'run.model.documents = "{APART}": the family {model.family!r} cannot keep documents '
            f'apart, gpt and {HF} can: leave it out, or set it to "joined"'
        )
    if model.document_end < 0:
        raise Unusable(
            f'run.model.documents = "{APART}" needs a token that ends a document: set '
            'train.tokenizer to one that has it, such as "train:32000"'
        )


def tokenised_run(run: RunConfig, tokenizer: Tokenizer) -> RunConfig:
    """The run with what its manifest says of a tokenizer; a model that names no size gets its."""
    model = run.model
    vocabulary = model.vocabulary
    if tokenizer.size > VOCABULARY_MAX:
        raise Unusable(
            f"train.tokenizer has tokens up to number {tokenizer.size - 1:,}, a model at most "
            f"{VOCABULARY_MAX:,}: name another"
        )
    if vocabulary == BYTE_TOKENS:
        vocabulary = max(tokenizer.size, BYTE_TOKENS)
    end = -1 if tokenizer.end is None else tokenizer.end
    named = dataclasses.replace(
        model, vocabulary=vocabulary, tokenizer=tokenizer.digest, document_end=end
    )
    return dataclasses.replace(run, model=named)
