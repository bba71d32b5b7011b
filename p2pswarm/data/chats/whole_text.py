"""Documents of any text as rows of whole documents take them: each begins with a mark.

Errors:  as `token_corpus.py`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.data.held_out import warn_of_share
from p2pswarm.data.rows import begin_of, encoded, end_of, parts_of
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.target_marks import marked_document
from p2pswarm.data.sources import FoundFiles
from p2pswarm.data.token_corpus import Sources
from p2pswarm.data.token_file import PreparedDocument, stored_texts
from p2pswarm.data.tokenizer import Tokenizer

RULE = "whole 1"  # rises when a document becomes other tokens
DTYPE = np.dtype("<u4")


def load_whole(
    sources: Sources, tokenizer: Tokenizer | None, *, cache: Path, seed: int, shape: tuple[int, int]
) -> Corpus:
    """The corpus of the sources, tokenised once into `cache`; `shape` is rows, sequence length."""
    tokens = "bytes" if tokenizer is None else tokenizer.mark
    settings = f"{RULE} {sources.settings} {tokens} {shape[1]}"
    documents = whole_documents(sources.documents(), tokenizer, shape[1] + 1)
    share = sources.train.held_out_share
    return stored_corpus(sources.found, share, settings, documents, cache, seed, shape)


def stored_corpus(
    found: FoundFiles,
    share: float,
    settings: str,
    documents: Iterable[PreparedDocument],
    cache: Path,
    seed: int,
    shape: tuple[int, int],
) -> Corpus:
    """The corpus of documents with marks, written to `cache` once.

    `settings`: all that decides which tokens there are, and on which side.
    """
    data, files = found.data, found.paths
    train, held_out = stored_texts(data, files, settings, cache, documents, DTYPE)
    if not len(train) or not len(held_out):
        side = "held out" if len(train) else "trained on"
        raise Unusable(f"{data}: nothing is {side}: name more, or change train.held_out_share")
    warn_of_share(data, train.text_bytes, held_out.text_bytes, share)
    return Corpus(train, held_out, len(files), seed, *shape, held_out.text_bytes)


def whole_documents(
    documents: Iterable[tuple[bool, bytes]], tokenizer: Tokenizer | None, capacity: int
) -> Iterator[PreparedDocument]:
    """Documents with the token that ends each; those longer than a row as several."""
    begin, end = begin_of(tokenizer), end_of(tokenizer)
    for held_out, document in documents:
        tokens = np.concatenate([begin, *encoded(list(parts_of(document)), tokenizer), end])
        text_bytes = len(document)
        for start in range(0, len(tokens), capacity):
            piece = tokens[start : start + capacity]
            if len(piece) > 1:  # its first token is no target
                marked = marked_document(piece, np.ones(len(piece), dtype=bool))
                yield PreparedDocument(held_out, marked.astype(DTYPE).tobytes(), text_bytes)
                text_bytes = 0
