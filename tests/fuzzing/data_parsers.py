"""The parsers of texts, rows and tokenizers, as functions of bytes."""

import contextlib
import functools
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
from fuzzing.base import joined, parts, placed, slow_parser
from tokenizers import decoders, models, pre_tokenizers

from p2pswarm.base.errors import Unusable
from p2pswarm.data.columnar_files import ArrowFiles, ParquetFiles
from p2pswarm.data.documents import documents
from p2pswarm.data.hub_dataset.file_choice import chosen, is_sound
from p2pswarm.data.line_files import LineFiles
from p2pswarm.data.sources import DATASET_STATE, TOKENIZER_FILE, files_of
from p2pswarm.data.text_files import load_corpus, plain_sides
from p2pswarm.data.text_stream import RowFiles
from p2pswarm.data.tokenizer import Tokenizer, read_tokenizer
from p2pswarm.data.tokenizer_folder import BESIDE, GENERATION_FILE
from p2pswarm.settings.dataset_name import dataset_name

FIELD = "text"
TRIED = b"the cat sat on\nthe mat \xc3\xa9\xff <s>"


def _read_all(files: RowFiles) -> None:
    """From the middle on, as a row of a batch may begin there."""
    for batch in files.batches_from(len(files) // 2) if len(files) else ():
        for number in range(len(batch.begins) - 1):
            assert isinstance(batch.texts[number], bytes)


@slow_parser
def json_rows(data: bytes) -> None:
    """Lines of JSON, read through and read from the middle."""
    path = placed("rows.jsonl", data)
    with contextlib.suppress(Unusable):
        assert all(documents(path, FIELD))
    with contextlib.suppress(Unusable):
        _read_all(LineFiles([path], FIELD))


@slow_parser
def parquet_rows(data: bytes) -> None:
    """The pages of a parquet file, read through and read from the middle.

    Their file's end stays whole: pyarrow 26 ends the process for some that are not.
    """
    kinds = _parquet_kinds()
    _, end = kinds[data[0] % len(kinds)] if data else kinds[0]
    path = placed("rows.parquet", b"PAR1" + data[1:] + end)
    with contextlib.suppress(Unusable):
        assert all(documents(path, FIELD))
    with contextlib.suppress(Unusable):
        _read_all(ParquetFiles([path], FIELD))


@slow_parser
def arrow_rows(data: bytes) -> None:
    """An arrow file or stream, read through and read from the middle."""
    path = placed("rows.arrow", data)
    with contextlib.suppress(Unusable):
        assert all(documents(path, FIELD))
    with contextlib.suppress(Unusable):
        _read_all(ArrowFiles([path], FIELD))


@slow_parser
def plain_text(data: bytes) -> None:
    """A text file, and the same as a file of JSON: whole, and streamed."""
    for name in ("plain.txt", "plain.json"):
        with contextlib.suppress(Unusable):
            found = files_of(placed(name, data))
            with contextlib.suppress(Unusable):
                load_corpus(found, held_out_share=0.1, seed=1, shape=(1, 8))
            for side in plain_sides(found, 0.1, chunk_bytes=16):
                for batch in side.batches_from(len(side) // 2):
                    assert batch.texts[0] is not None


@slow_parser
def dataset_state(data: bytes) -> None:
    """The list of files of a dataset of Hugging Face."""
    placed("dataset/rows.arrow", b"")
    with contextlib.suppress(Unusable):
        assert files_of(placed(f"dataset/{DATASET_STATE}", data).parent).rows


@slow_parser
def hub_dataset(data: bytes) -> None:
    """A data set's name, the list of its files, a line each, and its card; a part each."""
    text, names, card, *_ = [*parts(data), b"", b"", b""]
    there = sorted(set(names.decode("utf-8", "replace").split("\n")))
    try:
        asked = dataset_name("hf:" + text.decode("utf-8", "replace"))
    except ValueError:
        return
    assert dataset_name(str(asked)) == asked
    with contextlib.suppress(Unusable):
        found = chosen(asked, there, card)
        assert found.files
        assert all(is_sound(name) and name in there for name in found.files)


@slow_parser
def tokenizer_file(data: bytes) -> None:
    """A tokenizer.json; and what it makes of a text."""
    with contextlib.suppress(Unusable):
        found = Tokenizer(data.decode("utf-8", "replace"), "file")
        assert found.text.encode()
        assert found.end is None or isinstance(found.end_text, str)
        (tokens,) = found.encode([TRIED])
        assert isinstance("".join(found.decode(tokens.tolist())), str)


@slow_parser
def tokenizer_folder(data: bytes) -> None:
    """What lies beside a tokenizer.json, a part each: it is read by transformers."""
    names = (*BESIDE, GENERATION_FILE)
    for name, part in zip(names, parts(data), strict=False):
        placed(f"tokenizer/{name}", part)
    with contextlib.suppress(Unusable):
        read_tokenizer(placed(f"tokenizer/{TOKENIZER_FILE}", WORDS).parent)


def _tokenizer(model: models.Model, before: object, decoder: object) -> bytes:
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = before, decoder
    made.add_special_tokens(["<s>", "</s>"])
    return bytes(made.to_str().encode())


VOCABULARY = {word: number for number, word in enumerate(["<unk>", *"thecasomn", "th", "the"])}
WORDS = _tokenizer(
    models.WordLevel({"<unk>": 0, "the": 1, "cat": 2}, "<unk>"),
    pre_tokenizers.Whitespace(),
    decoders.WordPiece(),
)


def _tokenizers() -> list[bytes]:
    merges = [("t", "h"), ("th", "e")]
    numbers = [(word, -float(number)) for word, number in VOCABULARY.items()]
    return [
        WORDS,
        _tokenizer(
            models.BPE(VOCABULARY, merges, unk_token="<unk>"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        ),
        _tokenizer(models.Unigram(numbers, 0), pre_tokenizers.Metaspace(), decoders.Metaspace()),
        _tokenizer(
            models.WordPiece({**VOCABULARY, "##at": 20}, unk_token="<unk>"),
            pre_tokenizers.Split(tokenizers.Regex("[a-z]+"), "isolated"),
            decoders.WordPiece(),
        ),
    ]


def _table(*columns: object) -> pa.Table:
    return pa.table({FIELD: pa.concat_arrays(list(columns))})


TEXTS = pa.array(["one", "", None, "caf\u00e9", "two\nlines"])


def _parquet(**how: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(_table(TEXTS), sink, store_schema=False, **how)
    return sink.getvalue()


@functools.cache
def _parquet_kinds() -> list[tuple[bytes, bytes]]:
    """The pages of each kind of file, and its end."""
    files = [
        _parquet(compression="none"),
        _parquet(compression="snappy", use_dictionary=False, row_group_size=2),
    ]
    lengths = [int.from_bytes(file[-8:-4], "little") + 8 for file in files]
    return [(file[4:-length], file[-length:]) for file, length in zip(files, lengths, strict=True)]


def _arrow(texts: pa.Array, compression: str | None = None, *, stream: bool = True) -> bytes:
    sink, table = io.BytesIO(), pa.table({FIELD: texts})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    begin = pa.ipc.new_stream if stream else pa.ipc.new_file
    with begin(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=3)
    return sink.getvalue()


SPECIAL = {"eos_token": "</s>", "bos_token": {"content": "<s>", "special": True}}
ADDED = {"content": "<new>", "special": False, "lstrip": True, "rstrip": False, "normalized": True}
DATA_SEEDS = {
    "json_rows": lambda: [
        b'{"text": "one"}\n{"text": "caf\\u00e9", "id": 7}\n\n{"text": ""}\n{"text":"\\ud800"}\n',
        b'\xef\xbb\xbf{"id": {"text": "inner"}, "text": "outer"}',
        b'[{"text": "array"}]',
    ],
    "parquet_rows": lambda: [
        bytes([number]) + pages for number, (pages, _) in enumerate(_parquet_kinds())
    ],
    "arrow_rows": lambda: [
        _arrow(TEXTS),
        _arrow(TEXTS, stream=False),
        _arrow(TEXTS, "lz4"),
        _arrow(TEXTS.cast(pa.large_string())),
        _arrow(TEXTS.dictionary_encode()),
        _arrow(TEXTS.cast(pa.string_view())),
    ],
    "plain_text": lambda: [
        b"a line\nand caf\xc3\xa9s\n" * 8,
        "wide\n".encode("utf-16"),
        b'{"text": 1}\n{"text": 2}\n',
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
    "dataset_state": lambda: [b'{"_data_files":[{"filename":"rows.arrow"}],"_fingerprint":"1"}'],
    "hub_dataset": lambda: [
        joined(b"o/n", b"data/train-00000-of-00001.parquet\ndata/test-00000-of-00001.parquet"),
        joined(b"o/n@main/**/t*.jsonl", b"a/train.jsonl\n../b\nREADME.md"),
        joined(
            b"o/n#en:test",
            b"a/x.csv\nb/y.csv",
            b"---\nconfigs:\n- config_name: en\n  data_files:\n  - {split: test, path: [a/*]}\n---",
        ),
        joined(
            b"o/n",
            b"a/dev/x.csv\nb/y.csv",
            b"---\nconfigs: [&a {data_dir: b, default: true}, *a]\n---",
        ),
    ],
    "tokenizer_file": _tokenizers,
    "tokenizer_folder": lambda: [
        joined(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL}).encode(),
            b'{"model_type":"llama","eos_token_id":4}',
            json.dumps(SPECIAL).encode(),
            b'{"<more>":5}',
            b'{"eos_token_id":[4,1]}',
        ),
        joined(json.dumps({"added_tokens_decoder": {"5": ADDED}, "extra": [1]}).encode()),
        joined(b"{}", b'{"model_type":"gpt2"}', b'{"eos_token":null}'),
    ],
}
