"""What a run's text becomes: its files, tokens, sides, and first rows.

Errors:  Unusable for settings, text or a tokenizer that cannot be used.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.chat_corpus import has_chats, sides_of
from p2pswarm.data.chats.preference import SIDES
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.target_marks import IDS, NO_TARGET
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import remarks_on_split
from p2pswarm.data.token_corpus import sources_of
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.node.run.dataset_commits import with_commits
from p2pswarm.node.run.preparation import check_documents, tokenised_run
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.progress.printable import printable
from p2pswarm.settings.limits import BYTES
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import load
from p2pswarm.settings.train_config import TrainConfig

NAMES_SHOWN = 3
ROOM = "  "
LEARNT, PLAIN = "\x1b[1;32m", "\x1b[0m"
BRACKETS = "\u27e6", "\u27e7"


@dataclass(frozen=True, slots=True)
class SideSize:
    """How much is on a side."""

    documents: int
    """Rows of files; or parts of text files that lie together."""
    text_bytes: int


@dataclass(frozen=True, slots=True)
class TextReport:
    """One text of a run."""

    data: str
    kind: str
    """What a document is: a row, or a file."""
    files: int
    file_bytes: int
    names: tuple[str, ...]
    """Of the first files."""
    remarks: tuple[str, ...]
    """What is passed over, and what is read otherwise than the files' names tell."""
    train: SideSize | None
    """None: the text is streamed, and nobody has read all of it."""
    held_out: SideSize | None


@dataclass(frozen=True, slots=True)
class ShownRow:
    """A row that is trained on."""

    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    """For each token 1 if it is a target, and else 0."""
    documents: tuple[str, ...]
    """Its text, parted where a token ends a document; of whole documents, where targets do."""
    answer: str = ""
    """Of a pair, which answer it is: chosen or rejected."""


@dataclass(frozen=True, slots=True)
class DataReport:
    """The text of a run."""

    texts: tuple[TextReport, ...]
    held_out_share: float
    """What the settings ask for."""
    tokenizer: str
    vocabulary: int
    end: int | None
    """The token that ends a document; None: a line break does."""
    end_text: str
    remarks: tuple[str, ...]
    """On the tokenizer."""
    rows: tuple[ShownRow, ...]


def text_report(settings: Path, shown: int, changes: Sequence[str] = ()) -> DataReport:
    """Read the text of a trainer's settings, as its run would; `changes`: as `load` takes them."""
    config = with_commits(load(settings, changes))
    train = config.train
    if not train.parts:
        raise Unusable(f"{settings}: train.data is missing: name a text file or a folder")
    config = settled(config)
    tokenizer = tokenizer_of(config)
    if tokenizer is not None:
        config = dataclasses.replace(config, run=tokenised_run(config.run, tokenizer))
    check_documents(config.run)
    streamed = config.run.batch.samples == "streamed"
    paired = config.run.objective.prefers
    texts = tuple(
        _text(train.of_part(part), streamed=streamed, paired=paired) for part in train.parts
    )
    corpus = read_corpus(config, tokenizer)
    return DataReport(
        texts=texts,
        held_out_share=train.held_out_share,
        tokenizer=train.tokenizer,
        vocabulary=tokenizer.size if tokenizer else config.run.model.vocabulary,
        end=tokenizer.end if tokenizer else None,
        end_text=(tokenizer.end_text if tokenizer else None) or "a line break",
        remarks=tokenizer.remarks if tokenizer else (),
        rows=tuple(_rows(config, corpus, tokenizer, shown)),
    )


def _text(train: TrainConfig, *, streamed: bool, paired: bool) -> TextReport:
    assert train.data is not None, "a text of a mixture has it"
    found = files_of(train.data, train.suffixes)
    lines = found.lines(tokenised=train.tokenizer != BYTES, all_passed=True)
    sizes = [None, None] if streamed else _sizes(train, paired=paired)
    return TextReport(
        data=str(found.data),
        kind="a row" if found.rows else "a file",
        files=len(found.paths),
        file_bytes=ImmutableFiles(found.paths).begins[-1],
        names=tuple(found.name_of(path) for path in found.paths[:NAMES_SHOWN]),
        remarks=(*lines, *([] if found.rows else remarks_on_split(found, train.held_out_share))),
        train=sizes[0],
        held_out=sizes[1],
    )


def _sizes(train: TrainConfig, *, paired: bool) -> list[SideSize | None]:
    """The sizes of both sides, of all documents."""
    sources, share = sources_of(train), train.held_out_share
    found = sources.documents()
    if paired or has_chats(sources.found, train.field):
        found = sides_of(sources.found, share, paired=paired)
    documents, text_bytes = [0, 0], [0, 0]
    for held_out, document in found:
        documents[held_out] += 1
        text_bytes[held_out] += len(document)
    return [SideSize(*each) for each in zip(documents, text_bytes, strict=True)]


def _rows(
    config: NodeConfig, corpus: Corpus, tokenizer: Tokenizer | None, shown: int
) -> Iterator[ShownRow]:
    """The first rows of the run; of pairs both answers of as many."""
    paired = config.run.objective.prefers
    for number in range(shown * len(SIDES) if paired else shown):
        microbatch, row = divmod(number, config.run.batch.rows)
        marked = corpus.microbatch(microbatch)[row].tolist()
        tokens = tuple(token & IDS for token in marked)
        targets = (0, *(int(not token & NO_TARGET) for token in marked[1:]))
        if config.run.batch.marked:
            parts = [_written(tokens[a:b], tokenizer) for a, b in _runs(targets)]
        else:
            parts = [*_documents(tokens, tokenizer)]
        answer = SIDES[number % len(SIDES)] if paired else ""
        yield ShownRow(tokens, targets, tuple(parts), answer)


def _runs(targets: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """The parts of a row that are targets, and those that are not, in turns."""
    begin = 0
    for _, run in itertools.groupby(targets):
        end = begin + len(list(run))
        yield begin, end
        begin = end


def _written(tokens: tuple[int, ...], tokenizer: Tokenizer | None) -> str:
    if tokenizer is None:
        return bytes(tokens).decode("utf-8", "replace")
    return tokenizer.written(tokens)


def _documents(tokens: tuple[int, ...], tokenizer: Tokenizer | None) -> Iterator[str]:
    """The texts of a row, parted where a token ends a document."""
    if tokenizer is None:
        yield _written(tokens, tokenizer)
        return
    begin = 0
    for place, token in enumerate(tokens):
        if token == tokenizer.end:
            yield "".join(tokenizer.decode(tokens[begin:place]))
            begin = place + 1
    yield "".join(tokenizer.decode(tokens[begin:]))


def as_json(found: DataReport) -> str:
    """One line for scripts."""
    return json.dumps(dataclasses.asdict(found))


def as_text(found: DataReport, *, colours: bool = False) -> str:
    """Lines for people; `colours`: the terminal has some, to show what is a target."""
    lines = [line for text in found.texts for line in _text_lines(text, found.held_out_share)]
    what = "bytes" if found.end is None and found.tokenizer == BYTES else found.tokenizer
    ends = found.end_text if found.end is None else f"{found.end_text!r}, token {found.end}"
    lines.append(f"tokens: {what}, {found.vocabulary:,} of them; a document ends with {ends}")
    lines += [f"{ROOM}{remark}" for remark in found.remarks]
    shown = [printable(line) for line in lines]
    for number, row in enumerate(found.rows):
        if sum(row.targets) + 1 < len(row.tokens):
            shown += _marked_lines(number, row, colours=colours)
        else:
            shown += [printable(line) for line in _row_lines(number, row, ends)]
    return "\n".join(shown)


def _row_lines(number: int, row: ShownRow, ends: str) -> Iterator[str]:
    """A row of which every token is a target."""
    yield f"row {number}: {len(row.tokens)} tokens"
    yield f"{ROOM}{list(row.tokens)}"
    for place, document in enumerate(row.documents):
        if place:
            yield f"{ROOM}= {ends} ends a document"
        yield from (f"{ROOM}| {line}" for line in document.split("\n"))


def _marked_lines(number: int, row: ShownRow, *, colours: bool) -> Iterator[str]:
    """A row whose targets are coloured, or else in brackets."""
    begin, end = (LEARNT, PLAIN) if colours else BRACKETS
    what = f"row {number}, {row.answer}" if row.answer else f"row {number}"
    yield f"{what}: {len(row.tokens)} tokens, {sum(row.targets)} targets ({begin}so{end})"
    yield f"{ROOM}{list(row.tokens)}"
    text = ""
    for (place, _), part in zip(_runs(row.targets), row.documents, strict=True):
        plain = [printable(line) for line in part.split("\n")]  # no text can colour itself
        marked = [f"{begin}{line}{end}" for line in plain] if row.targets[place] else plain
        text += "\n".join(marked)
    yield from (f"{ROOM}| {line}" for line in text.split("\n"))


def _text_lines(text: TextReport, share: float) -> Iterator[str]:
    files = "file" if text.files == 1 else "files"
    more = ", ..." if text.files > len(text.names) else ""
    yield (
        f"{text.data}: {text.files:,} {files} of {text.file_bytes:,} bytes "
        f"({', '.join(text.names)}{more}); {text.kind} is a document"
    )
    yield from (f"{ROOM}{remark}" for remark in text.remarks)
    if text.train is None or text.held_out is None:
        yield f"{ROOM}read as needed; about {share:.1%} are held out"
        return
    whole = text.train.text_bytes + text.held_out.text_bytes
    unit = "rows" if text.kind == "a row" else "parts"
    yield (
        f"{ROOM}to train on: {text.train.text_bytes:,} bytes in {text.train.documents:,} {unit}; "
        f"held out: {text.held_out.text_bytes:,} bytes in {text.held_out.documents:,} "
        f"({text.held_out.text_bytes / max(1, whole):.1%} of the bytes, {share:.1%} was asked)"
    )
