"""Text as the tokens of a tokenizer: made once, kept on disk, read in pieces like prepared text.

A microbatch draws windows anywhere in the tokens, so their number must be known before the first
one is drawn: a text is tokenised as a whole, and not as it is needed. A long document is tokenised
in parts, because the library needs some hundred bytes of memory for each byte of a text.

Units:   bytes, unless tokens are named.
Errors:  as `documents.py` and `token_file.py`; Unusable for too little text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.data.columnar_files import bytes_to_learn
from p2pswarm.data.documents import all_documents
from p2pswarm.data.held_out import RULE, is_held_out_document, warn_of_share
from p2pswarm.data.rows import PART_BYTES, begin_of, end_of, parts_of
from p2pswarm.data.samples.corpus import Corpus, stable_hash
from p2pswarm.data.sources import FoundFiles, files_of
from p2pswarm.data.text_files import plain_sides, read_sides
from p2pswarm.data.token_file import PreparedDocument, fingerprint, stored_texts
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.settings.train_config import TrainConfig

BATCH_BYTES = 4 << 20  # of documents, tokenised at once: the library uses all processors
LEARNT_BYTES = 256 << 20  # of text, about, that a tokenizer is learnt from: more changes little


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that a trainer's settings mean."""

    train: TrainConfig
    found: FoundFiles
    streamed: bool
    """True if text files may be larger than the memory; they are then read in parts."""

    @property
    def settings(self) -> str:
        """Return what decides which text there is, and on which side."""
        train = self.train
        rule = "True" if self.found.rows else RULE
        return f"{train.field!r} {train.suffixes!r} {train.held_out_share!r} {rule}"

    @property
    def mark(self) -> bytes:
        """The fingerprint of the text."""
        return fingerprint(self.found.paths, self.settings)

    def documents(self) -> Iterator[tuple[bool, bytes]]:
        """Each document, or a part of one, and whether it is held out."""
        share = self.train.held_out_share
        if self.found.rows:
            for document in all_documents(self.found.paths, self.train.field):
                yield is_held_out_document(document, share), document
            return
        if self.streamed:
            for held_out, side in enumerate(plain_sides(self.found, share, PART_BYTES)):
                yield from ((bool(held_out), part.texts[0]) for part in side.batches_from(0))
            return
        for held_out, texts in enumerate(read_sides(self.found, share)):
            yield from ((bool(held_out), text) for text in texts)


def sources_of(train: TrainConfig, *, streamed: bool = False) -> Sources:
    """The files of `train.data`."""
    assert train.data is not None, "the command line requires it"
    return Sources(train, files_of(train.data, train.suffixes), streamed)


def load_tokenised(
    sources: Sources, tokenizer: Tokenizer, *, cache: Path, seed: int, shape: tuple[int, int]
) -> Corpus:
    """The corpus of the sources, tokenised once into `cache`; `shape` is rows, sequence length."""
    settings = f"{sources.settings} {tokenizer.mark}"
    data, files = sources.found.data, sources.found.paths
    found = tokenised(sources.documents(), tokenizer)
    learnt, held_out = stored_texts(data, files, settings, cache, found, tokenizer.dtype)
    rows, length = shape
    for kind, part in (("training", learnt), ("held-out", held_out)):
        if len(part) <= length:
            raise Unusable(
                f"{data}: {len(part)} tokens of {kind} text, a sequence has {length + 1}: "
                "name more text, or change train.held_out_share"
            )
    share = sources.train.held_out_share
    warn_of_share(data, learnt.text_bytes, held_out.text_bytes, share)
    return Corpus(learnt, held_out, len(files), seed, rows, length, held_out.text_bytes)


def tokenised(
    documents: Iterable[tuple[bool, bytes]], tokenizer: Tokenizer
) -> Iterator[PreparedDocument]:
    """The tokens of documents, each with the token that ends it, or else a line break."""
    begin, end = begin_of(tokenizer).tobytes(), end_of(tokenizer).tobytes()
    at_begin = True
    for batch in _batches(documents):
        encoded = tokenizer.encode([part for _, _, part in batch])
        for (held_out, last, part), tokens in zip(batch, encoded, strict=True):
            written = (begin if at_begin else b"") + tokens.tobytes() + (end if last else b"")
            at_begin = last
            yield PreparedDocument(held_out, written, len(part))


def learnt_texts(texts: Sequence[Sources], bytes_max: int = LEARNT_BYTES) -> Iterator[bytes]:
    """Yield what a tokenizer is learnt from: of each text of a mixture as much as of the others."""
    for sources in texts:
        yield from texts_to_learn(sources, bytes_max // len(texts))


def texts_to_learn(sources: Sources, bytes_max: int = LEARNT_BYTES) -> Iterator[bytes]:
    """Parts of the documents to train on, about `bytes_max` of them, chosen by their hash."""
    field = sources.train.field
    there = sum(bytes_to_learn(file, field) for file in sources.found.paths)
    share = bytes_max / max(there, bytes_max)
    for held_out, document in sources.documents():
        if held_out:
            continue
        for part in parts_of(document):
            if share == 1 or stable_hash(f"learn:{part!r}") / 2**64 < share:
                yield part


def _batches(documents: Iterable[tuple[bool, bytes]]) -> Iterator[list[tuple[bool, bool, bytes]]]:
    """Parts of documents, some at a time: held out or not, the last or not, and its bytes."""
    batch: list[tuple[bool, bool, bytes]] = []
    held_bytes = 0
    for held_out, document in documents:
        parts = list(parts_of(document))
        for number, part in enumerate(parts, 1):
            batch.append((held_out, number == len(parts), part))
            held_bytes += len(part)
            if held_bytes >= BATCH_BYTES:
                yield batch
                batch, held_bytes = [], 0
    if batch:
        yield batch
