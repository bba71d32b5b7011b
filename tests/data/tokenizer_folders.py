"""Folders of tokenizers, made by rule: each kind of file that says how a text becomes tokens.

`KINDS` has their names; `make` writes one; `compared` says whether ours reads it as AutoTokenizer.
"""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from p2pswarm.base.errors import Unusable
from p2pswarm.data.tokenizer import read_tokenizer

BYTES, SENTENCES, UNIGRAM, PIECES, WORDS = "bytes", "sentences", "unigram", "pieces", "words"
LEARNT = [
    "the cat sat on the mat, and the hat sat on the cat: 12 cats, 345 hats and 6 mats.",
    "Once upon a time there was a Zürich né à l'été; don't they're I'll we've.",
    "def main(argv):\n    return [x for x in argv if x]\n\n\tprint(main, sep=' ')\n",
    "日本語 한국어 русский ελληνικά 😀 ﬁne e\u0301",
] * 8
TEXTS = [
    "", " ", "the cat", " the cat", "  the  cat ", "The CAT sat.", "cat\n\nhat\r\n\tmat ",
    "naïve Zürich été e\u0301 ﬁne", "日本語 and 한국어", "😀😀 ok", "12345.678", "don't they're",
    "a<|endoftext|>b", "a <|endoftext|> b", "x<|im_start|>user\nhi<|im_end|>\n", "<s>cat</s>",
    "[CLS] the cat [SEP]", "<extra>cat <extra> hat", "catcatcat", "\u00a0cat\u2009hat", "<unk> cat",
    "\0cat", "UNSEEN ΩΩΩ ‽",
]  # fmt: skip


def _learn(kind: str) -> dict[str, Any]:
    """A small tokenizer.json of a kind, as the library writes it."""
    if kind == BYTES:
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<|endoftext|>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind == SENTENCES:
        made = tokenizers.Tokenizer(
            models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        )
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        special = ["<unk>", "<s>", "</s>"]
        trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    elif kind == UNIGRAM:
        made = tokenizers.Tokenizer(models.Unigram())
        made.normalizer = normalizers.NFKC()
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=220,
            special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
            unk_token="<unk>",
            show_progress=False,
        )
    elif kind == PIECES:
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True)
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        trainer = trainers.WordPieceTrainer(
            vocab_size=300, special_tokens=special, show_progress=False
        )
    else:
        made = tokenizers.Tokenizer(models.WordLevel(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordLevelTrainer(
            special_tokens=["[UNK]", "<|endoftext|>"], show_progress=False
        )
    made.train_from_iterator(LEARNT, trainer)
    return json.loads(made.to_str())


@functools.cache
def learnt(kind: str) -> str:
    return json.dumps(_learn(kind))


@dataclass(frozen=True)
class Folder:
    """What is in a folder."""

    kind: str = BYTES
    config: dict[str, Any] | None = field(default_factory=dict)
    """tokenizer_config.json."""
    files: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    """What is another in tokenizer.json's `model`."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    """What is another in tokenizer.json."""


PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
END = {"eos_token": "<|endoftext|>"}
CHAT = {
    str(400 + number): {
        "content": name,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": True,
    }
    for number, name in enumerate(("<|im_start|>", "<|im_end|>"))
}
EXTRA = {"id": 400, "content": "<extra>", "single_word": False, "special": False}
EXTRA |= {"lstrip": True, "rstrip": True, "normalized": True}
MASK = {"__type": "AddedToken", "content": "<extra>", "lstrip": True, "special": True}
CUT = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}


def _class(name: str, kind: str = BYTES, **config: Any) -> Folder:
    return Folder(kind, {"tokenizer_class": name, **config})


def _of_model(model_type: str, name: str | None, kind: str = BYTES, **config: Any) -> Folder:
    values = config | ({"tokenizer_class": name} if name else {})
    return Folder(kind, values, {"config.json": {"model_type": model_type, "eos_token_id": 1}})


FOLDERS: dict[str, Folder] = {
    # the class
    **{
        f"class {name}": _class(name, kind, **more)
        for kind, name, more in (
            (BYTES, "PreTrainedTokenizerFast", END),
            (BYTES, "TokenizersBackend", END),
            (BYTES, "GPT2Tokenizer", {}),
            (BYTES, "GPT2TokenizerFast", END),
            (BYTES, "GPTNeoXTokenizerFast", {}),
            (BYTES, "Qwen2Tokenizer", {}),
            (BYTES, "RobertaTokenizer", {}),
            (BYTES, "BloomTokenizerFast", END),
            (BYTES, "LlamaTokenizerFast", END),
            (BYTES, "CodeGenTokenizer", {}),
            (BYTES, "CohereTokenizerFast", {}),
            (BYTES, "WhisperTokenizer", {}),
            (BYTES, "UnheardOfTokenizer", END),
            (SENTENCES, "LlamaTokenizer", {}),
            (SENTENCES, "GemmaTokenizer", {}),
            (SENTENCES, "CodeLlamaTokenizer", {}),
            (UNIGRAM, "T5Tokenizer", {}),
            (UNIGRAM, "XLMRobertaTokenizer", {}),
            (UNIGRAM, "MBartTokenizer", {"src_lang": "en_XX"}),
            (UNIGRAM, "PegasusTokenizer", {}),
            (UNIGRAM, "CamembertTokenizer", {}),
            (PIECES, "BertTokenizer", {}),
            (PIECES, "DistilBertTokenizerFast", {}),
            (PIECES, "ElectraTokenizer", {}),
        )
    },
    **{f"plain {kind}": Folder(kind, PLAIN) for kind in (SENTENCES, UNIGRAM, PIECES, WORDS)},
    # what the class is told
    "prefix space of GPT2": _class("GPT2Tokenizer", add_prefix_space=True),
    "prefix space of a plain one": Folder(config=PLAIN | END | {"add_prefix_space": True}),
    "no prefix space of Llama": _class("LlamaTokenizer", SENTENCES, add_prefix_space=False),
    "legacy Llama": _class("LlamaTokenizer", SENTENCES, legacy=True),
    "upper case of Bert": _class("BertTokenizer", PIECES, do_lower_case=False),
    "split special tokens": Folder(config=PLAIN | END | {"split_special_tokens": True}),
    "marks at both ends": Folder(
        config=PLAIN | END | {"add_bos_token": True, "add_eos_token": True}
    ),
    # the class by the model
    "model gpt2 without a class": _of_model("gpt2", None),
    "model llama without a class": _of_model("llama", None, SENTENCES),
    "model qwen2 of a plain class": _of_model("qwen2", "PreTrainedTokenizerFast"),
    "model phi3 of Llama's class": _of_model("phi3", "LlamaTokenizer", SENTENCES),
    "model llama of GPT2's class": _of_model("llama", "GPT2Tokenizer"),
    "model nobody knows": _of_model("unheard_of", "PreTrainedTokenizerFast", **END),
    "class in config.json": Folder(
        config={}, files={"config.json": {"model_type": "x", "tokenizer_class": "GPT2Tokenizer"}}
    ),
    # what ends a text
    "end in the config": Folder(config=PLAIN | {"eos_token": "</s>"}),
    "end as a table": Folder(
        config=PLAIN | {"eos_token": {"content": "</s>", "__type": "AddedToken"}}
    ),
    "end in the map": Folder(
        config=PLAIN, files={"special_tokens_map.json": {"eos_token": "</s>"}}
    ),
    "end in the map as a table": Folder(
        config=PLAIN, files={"special_tokens_map.json": {"eos_token": {"content": "</s>"}}}
    ),
    "end in the map, tokens in the config": Folder(
        config=PLAIN | {"added_tokens_decoder": CHAT},
        files={"special_tokens_map.json": {"eos_token": "</s>"}},
    ),
    "end of the map and another of the config": Folder(
        config=PLAIN | END, files={"special_tokens_map.json": {"eos_token": "</s>"}}
    ),
    "end in config.json": _of_model("llama", "PreTrainedTokenizerFast"),
    "ends in config.json": Folder(
        config=PLAIN, files={"config.json": {"model_type": "llama", "eos_token_id": [1, 0]}}
    ),
    "end in generation_config.json": Folder(
        config=PLAIN, files={"generation_config.json": {"eos_token_id": 1}}
    ),
    "end of the text part": Folder(
        config=PLAIN,
        files={"config.json": {"model_type": "x", "text_config": {"eos_token_id": 1}}},
    ),
    "end of the map against config.json": Folder(
        config=PLAIN,
        files={
            "special_tokens_map.json": {"eos_token": "</s>"},
            "config.json": {"model_type": "llama", "eos_token_id": 0},
        },
    ),
    "end that is a word": Folder(config=PLAIN | {"eos_token": "cat"}),
    "end that is no token": Folder(config=PLAIN | {"eos_token": "<done>"}),
    # tokens that files beside it add
    "tokens in the config alone": Folder(config=PLAIN | END | {"added_tokens_decoder": CHAT}),
    "tokens in added_tokens.json": Folder(
        config=PLAIN | END,
        files={"added_tokens.json": {"<|im_start|>": 400, "<|im_end|>": 401}},
    ),
    "additional tokens": Folder(
        config=PLAIN | END | {"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}
    ),
    "extra tokens by name": Folder(
        config=PLAIN | END | {"extra_special_tokens": {"image_token": "<extra>"}}
    ),
    "a token that takes spaces": Folder(config=PLAIN | END, tokenizer={"added_tokens": [EXTRA]}),
    "a mask that takes spaces": Folder(config=PLAIN | END | {"mask_token": MASK}),
    # what a tokenizer.json may have
    "dropout": Folder(config=PLAIN | END, model={"dropout": 0.5}),
    "dropout of GPT2": Folder(config={"tokenizer_class": "GPT2Tokenizer"}, model={"dropout": 0.5}),
    "dropout alone": Folder(config=None, model={"dropout": 0.5}),
    "truncation": Folder(config=PLAIN | END, tokenizer={"truncation": CUT}),
    "a prefix in the pre-tokenizer": Folder(
        config=PLAIN | END,
        tokenizer={
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            }
        },
    ),
    "a normalizer under GPT2's class": Folder(
        config={"tokenizer_class": "GPT2Tokenizer"}, tokenizer={"normalizer": {"type": "Lowercase"}}
    ),
    "whole words first": Folder(config=PLAIN | END, model={"ignore_merges": True}),
    "alone": Folder(config=None),
    "code of the folder": Folder(
        config={"auto_map": {"AutoTokenizer": ["mine.Mine", None]}, "tokenizer_class": "Mine"}
    ),
}
KINDS = tuple(FOLDERS)


def make(place: Path, name: str) -> Path:
    """Write a folder of a kind."""
    folder = FOLDERS[name]
    place.mkdir(parents=True, exist_ok=True)
    found = json.loads(learnt(folder.kind))
    found["model"] |= folder.model
    added = folder.tokenizer.get("added_tokens", [])
    found |= folder.tokenizer | {"added_tokens": [*found["added_tokens"], *added]}
    (place / "tokenizer.json").write_text(json.dumps(found))
    files = folder.files | (
        {} if folder.config is None else {"tokenizer_config.json": folder.config}
    )
    for file, table in files.items():
        (place / file).write_text(json.dumps(table))
    return place


def compared(place: Path) -> str:
    """Return "same", "refused: ..." by ours, or what is not as AutoTokenizer has it."""
    try:
        ours = read_tokenizer(place)
    except Unusable as error:
        return f"refused: {error}"
    theirs = _theirs(place)
    if (end := _end(place, theirs)) is not None and ours.end != end:
        return f"ends with {ours.end}, not {end}"
    for split, mine in ((True, ours), (False, ours.reading_special())):
        for text in TEXTS:
            (found,) = mine.encode([text.encode()])
            theirs.split_special_tokens = split
            theirs.backend_tokenizer.encode_special_tokens = split
            wanted = theirs(text, add_special_tokens=False)["input_ids"]
            if found.tolist() != wanted:
                return f"{text!r} is {found.tolist()}, not {wanted}"
    return "same"


def _theirs(place: Path) -> Any:
    """The library's, without what it does by chance."""
    import transformers  # noqa: PLC0415 - it takes seconds

    transformers.logging.set_verbosity_error()
    if (place / "tokenizer_config.json").is_file():
        theirs = transformers.AutoTokenizer.from_pretrained(place)
    else:
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(place / "tokenizer.json"))
    if isinstance(theirs.backend_tokenizer.model, models.BPE):
        theirs.backend_tokenizer.model.dropout = None
    return theirs


def _end(place: Path, theirs: Any) -> int | None:
    """What ends a text: as the tokenizer has it, or else the model's configs."""
    if theirs.eos_token_id is not None:
        return theirs.eos_token_id
    for name in ("config.json", "generation_config.json"):
        if (place / name).is_file():
            table = json.loads((place / name).read_text())
            end = table.get("eos_token_id", table.get("text_config", {}).get("eos_token_id"))
            if end is not None:
                return end[0] if isinstance(end, list) else end
    return None
