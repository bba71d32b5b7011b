"""All that a trainer's settings name, read and checked before its node is in a swarm.

So whatever is wrong with them is one line, and nothing has been started. What is left for later
depends on peers, or on this node's own key and chain.
"""

import dataclasses
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target
from p2pswarm.data.corpus import Corpus
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.models.compute.bundle_spec import check_model
from p2pswarm.models.compute.model_check import check_once
from p2pswarm.models.document_masks import APART
from p2pswarm.models.hf_library import VOCABULARY_MAX
from p2pswarm.models.model_source import resolved
from p2pswarm.node.progress.curves import try_curves
from p2pswarm.node.progress.wandb_curves import try_wandb
from p2pswarm.node.run.closed_run import owned_by_us
from p2pswarm.node.run.resume import resumed_from, writable_store
from p2pswarm.node.run.run_folder import RunFolder, make_folder
from p2pswarm.node.run.run_match import check_records, check_same, owned_as
from p2pswarm.node.run.run_text import keep_with_checkpoints, read_corpus, tokenizer_of
from p2pswarm.node.run.weights_file import model_size, weights_name
from p2pswarm.node.stack.stack import Say
from p2pswarm.settings.config import HF, NodeConfig, RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

BYTE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Everything that a trainer begins with."""

    config: NodeConfig
    """The settings, with the model as the manifest names it."""
    tokenizer: Tokenizer | None
    corpus: Corpus
    text: bytes
    """The digest of the corpus."""
    resumed: ResumedFrom | None
    """The checkpoint that `train.resume` names."""


def prepare_run(config: NodeConfig, writer: str, say: Say) -> PreparedRun:
    """Read and check what `config` names; what takes longest comes last.

    `writer`: the short form of our peer id. `say` is told what checkpoint is gone on from.
    """
    config = owned_by_us(config)
    check_records(config.run)
    writable_store(config.checkpoint, writer)
    try_curves(config.train.curves)
    try_wandb(config.train.wandb)
    tokenizer = tokenizer_of(config)
    config = dataclasses.replace(config, run=checked_model(config.run, tokenizer))
    if config.train.weights is not None:
        last = weights_name(config.train.weights, config.run, config.run.steps)
        check_target(last, model_size(config.run).file_bytes)
    corpus = read_corpus(config, tokenizer)
    text = corpus.digest()
    _check_state(config, text)
    keep_with_checkpoints(config, tokenizer)
    resumed = resumed_from(config.train.resume, config.run, text, say)
    return PreparedRun(config, tokenizer, corpus, text, resumed)


def _check_state(config: NodeConfig, text: bytes) -> None:
    """Raise Unusable if the run that `state` goes on with is another one."""
    if config.state is None or config.train.new or config.train.resume:
        return
    make_folder(config.state)
    folder = RunFolder(config.state)
    saved = folder.read()
    if saved is not None and not saved.finished:
        check_same(saved, folder, owned_as(config.run, saved.identity.config), text)


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
