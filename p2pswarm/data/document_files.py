"""A corpus out of files whose rows are documents, of any size.

Errors:  as `rows.py` and `prepared_text.py`; Unusable for too little text.
"""

from collections.abc import Iterator
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.data.corpus import Corpus
from p2pswarm.data.prepared_text import (
    PreparedDocument,
    cached_name,
    fingerprint,
    is_held_out_document,
    open_prepared,
    prepare,
)
from p2pswarm.data.rows import documents
from p2pswarm.settings.train_config import TrainConfig

SEPARATOR = b"\n"


def load_documents(
    train: TrainConfig, files: list[Path], *, cache: Path, seed: int, shape: tuple[int, int]
) -> Corpus:
    """The corpus of `files`, which `train.data` means, prepared on disk once.

    `shape` is rows, sequence length.
    """
    assert train.data is not None, "it named the files"
    data, field, share = train.data, train.field, train.held_out_share
    settings = f"{field!r} {share!r}"
    mark = fingerprint(files, settings)
    path = cache / cached_name(data, settings)
    texts = open_prepared(path, mark)
    if texts is None:
        prepare(path, _prepared(all_documents(files, field), share), mark)
        if fingerprint(files, settings) != mark:
            raise Unusable(f"{data}: changed while it was read: start again when it is complete")
        texts = open_prepared(path, mark)
    if texts is None:
        raise Unusable(f"{path}: was replaced while it was read: start again")
    learnt, held_out = texts
    rows, sequence_length = shape
    for kind, text in (("training", learnt), ("held-out", held_out)):
        if len(text) <= sequence_length:
            raise Unusable(
                f"{data}: {len(text)} bytes of {kind} text, a sequence has {sequence_length + 1}: "
                "name more documents, or change train.held_out_share"
            )
    return Corpus(learnt, held_out, len(files), seed, rows, sequence_length)


def _prepared(found: Iterator[bytes], share: float) -> Iterator[PreparedDocument]:
    for document in found:
        written = document + SEPARATOR
        yield PreparedDocument(is_held_out_document(document, share), written, len(written))


def all_documents(files: list[Path], field: str) -> Iterator[bytes]:
    """The documents of all files, in their order."""
    for file in files:
        yield from documents(file, field)
