"""All that a trainer's settings name, read and checked before its node is in a swarm.

So whatever is wrong with them is one line, and nothing has been started. What is left for later
depends on peers, or on this node's own key and chain.
"""

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target
from p2pswarm.base.problems import Problems
from p2pswarm.checkpoint.targets import READER
from p2pswarm.checkpoint.weights_name import weights_name
from p2pswarm.data.chats.template import ChatTemplate
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.sources import check_there
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.models.check.model_check import check_once
from p2pswarm.models.compute.bundle_spec import check_model
from p2pswarm.models.compute.flat_parameters import check_low_rank
from p2pswarm.models.document_positions import APART, KEPT_APART, MARKED
from p2pswarm.models.library.hf_library import VOCABULARY_MAX
from p2pswarm.models.model_source import resolved
from p2pswarm.models.own_weights import OwnWeights
from p2pswarm.node.progress.curves import try_curves
from p2pswarm.node.progress.event_log import try_event_log
from p2pswarm.node.progress.wandb_curves import try_wandb
from p2pswarm.node.run.closed_run import check_closed, owned_by_us
from p2pswarm.node.run.dataset_commits import goes_on, keep_commits, with_commits
from p2pswarm.node.run.first_checkpoint import first_checkpoint, own_weights
from p2pswarm.node.run.references import check_references
from p2pswarm.node.run.resume import begun_from, resumed_from, writable_store
from p2pswarm.node.run.run_folder import RunFolder, make_folder, try_folder
from p2pswarm.node.run.run_match import check_records, check_same, owned_as
from p2pswarm.node.run.run_text import (
    default_cache,
    keep_with_checkpoints,
    read_corpus,
    remarks,
    settled,
    template_of_chats,
    tokenizer_of,
)
from p2pswarm.node.run.weights_file import model_size
from p2pswarm.node.stack.stack import Say
from p2pswarm.run.schedule import warms_on
from p2pswarm.settings.config import HF, STARTS, OptimizerConfig, RunConfig
from p2pswarm.settings.limits import BYTES, trained_tokens
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import MixturePart, TrainConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

log = logging.getLogger(__name__)

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
    template: ChatTemplate | None = None
    """What writes the chats of its text, if it has some."""


def prepare_run(config: NodeConfig, writer: str, say: Say) -> PreparedRun:
    """Read and check what `config` names; what takes longest comes last.

    `writer`: the short form of our peer id. `say` is told what checkpoint is gone on from.
    """
    for trial in _trials(config, writer):
        trial()
    _try_cache(config.train)
    named, asked = config, owned_by_us(with_commits(config))
    config = settled(asked)
    tokenizer = tokenizer_of(config)
    config = dataclasses.replace(config, run=checked_model(config.run, tokenizer))
    own = None if asked.run.start in STARTS else own_weights(asked.run, config.run)
    if config.train.weights is not None:
        last = weights_name(config.train.weights, config.run, config.run.steps)
        check_target(last, model_size(config.run).file_bytes)
    template = template_of_chats(config)
    corpus = read_corpus(config, tokenizer, template)
    text = corpus.digest()
    if config.state is not None:
        make_folder(config.state)
        _check_state(config, config.state, text)
    keep_commits(named, config)
    keep_with_checkpoints(config, tokenizer)
    resumed = _beginning(config, own, text, say)
    guessed = asked.run.batch != config.run.batch
    for remark in remarks(config, tokenizer, guessed=guessed):  # last: an error is one line
        log.warning("%s", remark)
    return PreparedRun(config, tokenizer, corpus, text, resumed, template)


def check_run(config: NodeConfig, problems: Problems) -> None:
    """Tell `problems` all that would keep a trainer from beginning; no run is begun."""
    train, tokenizer, run = config.train, None, None
    for trial in _trials(config, READER):
        with problems.noted():
            trial()
    there, texts = 0, tuple[MixturePart, ...]()
    with problems.noted():
        config = with_commits(config)
        texts = config.train.parts
    for part in texts:
        with problems.noted():
            assert part.data is not None, "a text of a mixture has it"
            check_there(part.data)
            there += 1
    text_is_there = False
    with problems.noted():
        _try_cache(train)
        if there == len(train.parts):
            config, text_is_there = settled(config), True
    readable = train.tokenizer == BYTES
    if not readable and (text_is_there or trained_tokens(train.tokenizer) is None):
        with problems.noted():
            tokenizer = tokenizer_of(config)
            readable = True
    if readable:
        with problems.noted():
            run = checked_model(config.run, tokenizer)
            if config.run.start not in STARTS:
                own_weights(config.run, run)
    if train.weights is not None:
        with problems.noted():
            last = weights_name(train.weights, config.run, config.run.steps)
            check_target(last, model_size(run).file_bytes if run else 0)
    if text_is_there and readable and (run or config.run.batch.samples != "packed"):
        with problems.noted():
            _check_text(dataclasses.replace(config, run=run or config.run), tokenizer)


def _check_text(config: NodeConfig, tokenizer: Tokenizer | None) -> None:
    """Raise Unusable for a text of which no step can be made, or that is another run's."""
    corpus = read_corpus(config, tokenizer)
    text = corpus.digest()
    if config.state is not None and config.state.is_dir():
        _check_state(config, config.state, text)
    _beginning(config, None, text, lambda _line: None)
    check_references(config, corpus)


def _beginning(
    config: NodeConfig, own: OwnWeights | None, text: bytes, say: Say
) -> ResumedFrom | None:
    """The checkpoint that the run begins with; None for the first weights.

    `own`: the user's own weights, if it begins with such; they are not read where a run goes on.
    """
    train = config.train
    if train.begin_from:
        return begun_from(train.begin_from, config.run, text, say, fresh=train.fresh_moments)
    if own is None or train.resume or train.standby or goes_on(config):
        return resumed_from(train.resume, config.run, text, say)
    return first_checkpoint(own, config.run, train.cache or default_cache())


def _trials(config: NodeConfig, writer: str) -> tuple[Callable[[], object], ...]:
    """What is tried first: it takes no time, and depends on nothing else."""
    run, train = config.run, config.train
    return (
        lambda: check_closed(config),
        lambda: check_schedule(run),
        lambda: check_records(run),
        lambda: writable_store(config.checkpoint, writer),
        lambda: try_curves(train.curves),
        lambda: try_event_log(train.log, "train.log"),
        lambda: try_wandb(train.wandb),
    )


def _try_cache(train: TrainConfig) -> None:
    """Raise Unusable for a folder of prepared text that cannot be used."""
    if train.cache is not None:
        try_folder(train.cache, "train.cache")


def check_schedule(run: RunConfig) -> None:
    """Raise Unusable for a warm-up that the user has set and the run does not reach the end of."""
    rate = run.optimizer
    if rate.warmup_steps != OptimizerConfig().warmup_steps and warms_on(run):
        raise Unusable(
            f"run.optimizer.warmup_steps {rate.warmup_steps} is more than the steps of the run or "
            f"of its schedule, {rate.decay_steps or run.steps}: the rate would never come to "
            f"{rate.learning_rate:g}; lower it, or raise run.steps"
        )


def _check_state(config: NodeConfig, state: Path, text: bytes) -> None:
    """Raise Unusable if the run that `state` goes on with is another one."""
    if config.train.new or config.train.resume or config.train.begin_from:
        return
    folder = RunFolder(state)
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
    check_documents(run)
    check_routers(run)
    check_model(run)
    check_low_rank(run)
    check_once(run)
    return run


def check_routers(run: RunConfig) -> None:
    """Raise Unusable for a loss of routers where there is no mixture of experts."""
    if run.model.router_loss and not run.model.family.startswith(HF):
        raise Unusable(
            f"run.model.router_loss is for mixtures of experts of {HF}, and the family is "
            f"{run.model.family!r}: leave it out"
        )


def check_documents(run: RunConfig) -> None:
    """Raise Unusable if the run's rows or masks need a token that ends a document."""
    model = run.model
    if run.batch.samples == "packed" and model.document_end < 0:
        raise Unusable(
            'run.batch.samples = "packed" needs a token that ends a document: set train.tokenizer '
            'to one that has it, such as "train:32000"'
        )
    if model.documents not in KEPT_APART:
        return
    if (model.documents == MARKED) != run.batch.marked:
        raise Unusable(
            f'run.model.documents = "{MARKED}" and run.batch.samples = "whole" are set together: '
            f'set documents to "{APART}", or leave it out'
        )
    if model.family != "gpt" and not model.family.startswith(HF):
        raise Unusable(
            f'run.model.documents = "{APART}": the family {model.family!r} cannot keep documents '
            f'apart, gpt and {HF} can: leave it out, or set it to "joined"'
        )
    if model.document_end < 0 and model.documents == APART:
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
    begin, end = (-1 if token is None else token for token in (tokenizer.begin, tokenizer.end))
    named = dataclasses.replace(
        model,
        vocabulary=vocabulary,
        tokenizer=tokenizer.digest,
        document_begin=begin,
        document_end=end,
    )
    return dataclasses.replace(run, model=named)
