"""The text of a trainer's settings as its run needs it: tokenizer and corpus. Torch is not loaded.

A tokenizer that is learnt ("train:32000") is kept beside the prepared text, under a name that says
from which text; it is learnt anew, and comes out the same, where that file is not there.
"""

import atexit
import dataclasses
import functools
import hashlib
import logging
import re
import tempfile
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import write_text
from p2pswarm.base.user_folders import cache_folder
from p2pswarm.checkpoint.targets import keep_beside, open_store
from p2pswarm.data.chats.chat_corpus import ChatSource, has_chats, has_pairs, load_chats
from p2pswarm.data.chats.template import ChatTemplate, NoTemplate, read_template
from p2pswarm.data.chats.whole_text import load_whole
from p2pswarm.data.documents import load_documents
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.epoch_corpus import ordered
from p2pswarm.data.samples.mixture import mixed
from p2pswarm.data.samples.pair_corpus import paired
from p2pswarm.data.sources import TOKENIZER_FILE, files_of, tokenizer_file
from p2pswarm.data.text_files import load_corpus, remarks_on_split
from p2pswarm.data.text_stream import streamed
from p2pswarm.data.token_corpus import learnt_texts, load_tokenised, sources_of
from p2pswarm.data.tokenizer import (
    FILE_BYTES_MAX,
    Tokenizer,
    hub_tokenizer,
    hub_tokenizer_folder,
    kept_tokenizer,
    read_tokenizer,
    train_tokenizer,
)
from p2pswarm.settings.config import HF, RunConfig
from p2pswarm.settings.limits import BYTES, trained_tokens
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig

KEY_DIGITS = 16  # of a hash, in the name of a file
KEPT = re.compile(r"tokenizer\.[0-9a-f]{16}\.json")
KEPT_MAX = 16  # tokenizers beside checkpoints: one a run, of runs that share a target

log = logging.getLogger(__name__)


def describe(corpus: Corpus, tokenizer: Tokenizer | None) -> str:
    """Return how much there is to learn from, in a line."""
    files = "1 file" if corpus.files == 1 else f"{corpus.files} files"
    if not corpus.counted:
        size_bytes = len(corpus.train) + len(corpus.held_out)
        return f"{files}: {size_bytes:,} bytes, read as they are needed"
    unit = "bytes" if tokenizer is None else f"tokens (of {tokenizer.size:,})"
    return f"{files}: {len(corpus.train):,} {unit} to train on, {len(corpus.held_out):,} held out"


def remarks(config: NodeConfig, tokenizer: Tokenizer | None, *, guessed: bool = False) -> list[str]:
    """What is passed over, guessed or converted of a run's text and tokenizer, a line each.

    `guessed`: the settings do not say that rows are whole documents.
    """
    lines, train = list[str](), config.train
    for part in train.parts:
        if part.data is not None:
            found = files_of(part.data, train.suffixes)
            lines += found.lines(tokenised=tokenizer is not None)
            guessed = guessed and not config.run.objective.prefers
            if guessed and has_chats(found, train.of_part(part).field):
                lines.append(f"{part.data}: its rows are chats: only what is answered is a target")
            lines += [] if found.rows else remarks_on_split(found, train.held_out_share)
    return [*lines, *(tokenizer.remarks if tokenizer else ())]


def settled(config: NodeConfig) -> NodeConfig:
    """The settings with what the rows of the text decide: chats are rows of whole documents.

    Unusable for samples that would cut them, and for pairs of answers without an objective that
    takes them, or the reverse.
    """
    batch, parts = config.run.batch, _parts(config.train)
    if config.run.objective.prefers:
        _check_pairs(config, parts)
        rows = "pairs of answers"
    else:
        for part in parts:
            if not _is_chat(part) and _is_pairs(part):
                raise Unusable(
                    f"{part.data}: its rows are pairs of a chosen and a rejected answer: set "
                    'run.objective to "dpo", "orpo" or "simpo" (docs/preferences.md)'
                )
        if batch.samples != "whole" and not any(map(_is_chat, parts)):
            return config
        rows = "chats"
    if batch.samples not in ("drawn", "whole"):
        raise Unusable(
            f'run.batch.samples = "{batch.samples}" is for text, and rows of train.data are {rows}'
            ': leave it out, or set it to "whole"'
        )
    return _whole(config)


def _check_pairs(config: NodeConfig, parts: list[TrainConfig]) -> None:
    name = config.run.objective.name
    if len(parts) > 1:
        raise Unusable(
            f'run.objective "{name}" takes one text, and train.mixture has {len(parts)}: put their '
            "files into one folder"
        )
    for part in parts:
        assert part.data is not None, "the command line requires it"
        if not has_pairs(files_of(part.data, part.suffixes)):
            raise Unusable(
                f'{part.data}: run.objective "{name}" takes rows with "chosen" and "rejected", and '
                "its first row has none: name such a text, or leave run.objective out"
            )


def _whole(config: NodeConfig) -> NodeConfig:
    """Whole documents, whose begins rows mark, if they are to be apart."""
    batch, model = config.run.batch, config.run.model
    if model.documents == "apart":
        model = dataclasses.replace(model, documents="marked")
    batch = dataclasses.replace(batch, samples="whole")
    run = dataclasses.replace(config.run, batch=batch, model=model)
    return dataclasses.replace(config, run=run)


def _parts(train: TrainConfig) -> list[TrainConfig]:
    return [train.of_part(part) for part in train.parts if part.data is not None]


def _is_chat(train: TrainConfig) -> bool:
    assert train.data is not None, "the command line requires it"
    return has_chats(files_of(train.data, train.suffixes), train.field)


def _is_pairs(train: TrainConfig) -> bool:
    assert train.data is not None, "the command line requires it"
    return has_pairs(files_of(train.data, train.suffixes), train.field)


def tokenizer_of(config: NodeConfig) -> Tokenizer | None:
    """The tokenizer of the settings, read or learnt; None for bytes."""
    if config.train.tokenizer == BYTES:
        return None
    tokenizer = _beginning(_found_tokenizer(config), config)
    return tokenizer.reading_special() if config.train.special_tokens == "tokens" else tokenizer


def _beginning(tokenizer: Tokenizer, config: NodeConfig) -> Tokenizer:
    """The tokenizer with the token that documents begin with, as the settings say."""
    how, begin = config.train.document_begin, tokenizer.own_begin
    if how == "token" and begin is None:
        raise Unusable(
            'train.document_begin = "token": the tokenizer begins texts with no token: leave it out'
        )
    wanted = how == "token" or (how == "auto" and config.run.start == "pretrained")
    if begin is None or not wanted:
        return tokenizer
    if how == "token":
        return tokenizer.beginning_with(begin)
    remark = (
        f"documents of text begin with {tokenizer.written([begin])!r}, as the tokenizer begins "
        'them: train.document_begin = "none" leaves it out'
    )
    return tokenizer.beginning_with(begin).with_remarks(remark)


def _found_tokenizer(config: NodeConfig) -> Tokenizer:
    train = config.train
    if train.tokenizer.startswith(HF):
        return hub_tokenizer(train.tokenizer.removeprefix(HF))
    size = trained_tokens(train.tokenizer)
    if size is None:
        return read_tokenizer(Path(train.tokenizer))
    if train.begin_from and (known := _of_checkpoints(train.begin_from, size)) is not None:
        return known  # the weights know its tokens, whatever the new text would teach
    streamed_too = config.run.batch.samples == "streamed"
    sources = [sources_of(train.of_part(part), streamed=streamed_too) for part in train.parts]
    mark = (
        hashlib.sha256(b"".join(each.mark for each in sources)).digest()
        if len(sources) > 1
        else sources[0].mark
    )
    name = f"{mark.hex()[:KEY_DIGITS]}.train-{size}.{TOKENIZER_FILE}"
    places = [folder / name for folder in (config.state, cache_of(train)) if folder is not None]
    tokenizer = next((kept_tokenizer(place) for place in places if place.is_file()), None)
    if tokenizer is None and train.resume:
        tokenizer = _of_checkpoints(train.resume, size)
    if tokenizer is None:
        tokenizer = train_tokenizer(size, learnt_texts(sources))
    for place in places:
        if not place.is_file():
            write_text(place, tokenizer.text)
    return tokenizer


def keep_with_checkpoints(config: NodeConfig, tokenizer: Tokenizer | None) -> None:
    """Write the tokenizer to the target of checkpoints, if the run has both."""
    if tokenizer is None or not config.checkpoint.target:
        return
    store = open_store(config.checkpoint.target)
    name = f"tokenizer.{tokenizer.digest[:KEY_DIGITS]}.json"
    data = tokenizer.text.encode()
    try:
        keep_beside(store, name, data)
    except OSError as error:
        raise Unusable(f"{store.place}: {name} cannot be written: {error.strerror}") from error


def _of_checkpoints(target: str, size: int) -> Tokenizer | None:
    """The tokenizer of so many tokens that lies beside checkpoints, if there is exactly one."""
    store = open_store(target)
    try:
        names = [name for name in store.entries() if KEPT.fullmatch(name)]
        texts = [store.read(name, 0, FILE_BYTES_MAX) for name in sorted(names)[:KEPT_MAX]]
    except OSError as error:
        raise Unusable(f"{store.place}: cannot be read: {error.strerror}") from error
    found = [Tokenizer(text.decode("utf-8", "replace"), store.place) for text in texts]
    fitting = [each for each in found if each.size == size]
    return fitting[0] if len(fitting) == 1 else None


def read_corpus(
    config: NodeConfig, tokenizer: Tokenizer | None = None, template: ChatTemplate | None = None
) -> Corpus:
    """The text of the settings, as the run's batches need it.

    `template`: of its chats, if it was read before (`template_of_chats`).
    """
    train, run = config.train, config.run
    template = template or template_of_chats(config)
    texts = [_read_text(train.of_part(part), run, tokenizer, template) for part in train.parts]
    if run.objective.prefers:
        return paired(texts[0], max(run.model.document_end, 0))
    corpus = mixed(texts, [part.weight for part in train.parts])
    return ordered(corpus, run.batch.samples, run.batch.microbatches, run.model.document_end)


def _read_text(
    train: TrainConfig,
    run: RunConfig,
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
) -> Corpus:
    """One text."""
    assert train.data is not None, "the command line requires it"
    found = files_of(train.data, train.suffixes)
    shape, seed, cache = (run.batch.rows, run.model.sequence_length), run.seed, cache_of(train)
    if run.batch.samples == "streamed":
        return streamed(train, tokenizer, seed=seed, shape=shape)
    pairs = run.objective.prefers
    if run.batch.samples == "whole" and (pairs or has_chats(found, train.field)):
        source = ChatSource(train, found, tokenizer, template, paired=pairs)
        return load_chats(source, cache=cache, seed=seed, shape=shape)
    if run.batch.samples == "whole":
        return load_whole(sources_of(train), tokenizer, cache=cache, seed=seed, shape=shape)
    if tokenizer is not None:
        return load_tokenised(sources_of(train), tokenizer, cache=cache, seed=seed, shape=shape)
    if found.rows:
        return load_documents(train, found.paths, cache=cache, seed=seed, shape=shape)
    return load_corpus(found, held_out_share=train.held_out_share, seed=seed, shape=shape)


def template_of_chats(config: NodeConfig) -> ChatTemplate | None:
    """The template that writes the chats of a run's text; None without chats."""
    train = config.train
    if not config.run.batch.marked or train.tokenizer == BYTES:
        return None
    chats = config.run.objective.prefers or any(map(_is_chat, _parts(train)))
    return template_of(train) if chats else None


def template_of(train: TrainConfig) -> ChatTemplate | None:
    """The chat template of the settings; None where no file says one."""
    if train.chat_template is None and trained_tokens(train.tokenizer) is not None:
        return None
    folder = None
    if train.tokenizer.startswith(HF):
        folder = hub_tokenizer_folder(train.tokenizer.removeprefix(HF))
    elif trained_tokens(train.tokenizer) is None:
        folder = tokenizer_file(Path(train.tokenizer)).parent
    try:
        return read_template(folder, train.chat_template)
    except NoTemplate:
        return None  # prompts and completions need none


def cache_of(train: TrainConfig) -> Path:
    """The folder for what is prepared of a text."""
    return train.cache or default_cache()


def default_cache() -> Path:
    """The user's folder for what can be made again; one of this process for a user without home."""
    try:
        return cache_folder()
    except RuntimeError:
        return Path(_temporary_cache().name)


@functools.cache
def _temporary_cache() -> "tempfile.TemporaryDirectory[str]":
    """A folder that goes with this process."""
    place = tempfile.TemporaryDirectory(prefix="p2pswarm-")
    atexit.register(place.cleanup)
    log.warning(
        "this user has no home: the text is prepared in %s; train.cache keeps it", place.name
    )
    return place
