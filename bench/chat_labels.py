"""Targets of chats, beside those of TRL's training templates as transformers masks them.

For each template that TRL ships with marks (`NAME_training.jinja`): the tokens and the targets of
ours against `apply_chat_template(return_assistant_tokens_mask=True)`, which TRL trains with. Then
for the published template beside it, without marks (`NAME.jinja`): if both write the same text,
the answers that we find against those that are marked. They are equal if both have the same of what
is said and of the special tokens that end turns. What only one of both has besides is told: headers
of turns, and line breaks behind their ends.

    pip download --no-deps trl==1.16.0 && unzip trl-*.whl 'trl/chat_templates/*'
    python bench/chat_labels.py --templates trl/chat_templates --json labels.json
    python bench/chat_labels.py --templates trl/chat_templates --tokenizer FOLDER --tokenizer ...

Without `--tokenizer` a small one is made that has all special names of the template. A folder that
is named is tried with the templates whose names begin with its own: qwen3/ with qwen3_*.jinja.
"""

import functools
import json
import logging
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from results import command_line, write_json
from tokenizers import models, pre_tokenizers, trainers

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.conversation import Conversation, row_of
from p2pswarm.data.chats.targets import tokens_of_chat
from p2pswarm.data.chats.template import read_template
from p2pswarm.data.samples.target_marks import IDS, NO_TARGET
from p2pswarm.data.tokenizer import Tokenizer, read_tokenizer

CHATS = {
    "one turn": [
        {"role": "user", "content": "What is 2 + 2?"},
        {"role": "assistant", "content": "It is 4."},
    ],
    "two turns": [
        {"role": "user", "content": "héllo 日本語"},
        {"role": "assistant", "content": "wörld\n\n12 cats"},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": "Nothing."},
    ],
    "system": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Ho."},
    ],
    "tools": [
        {"role": "user", "content": "How warm is Paris?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "callA0001",
                    "function": {"name": "weather", "arguments": {"city": "Paris"}},
                }
            ],
        },
        {"role": "tool", "name": "weather", "content": "cloudy, 21", "tool_call_id": "callA0001"},
        {"role": "assistant", "content": "It has 21 degrees."},
    ],
}
WHY_CHARS = 100
SPECIAL = re.compile("<[|\uff5c]?[^|\uff5c<>\\n{}' ]+[|\uff5c]?>|\\[/?[A-Z_]+\\]")


@dataclass(frozen=True)
class Labels:
    """What was found of one template, chat and tokenizer."""

    template: str
    chat: str
    tokenizer: str
    equal: bool | None
    """None: the template refuses the chat."""
    why: str = ""


def small_tokenizer(folder: Path, text: str) -> Path:
    """A folder of a tokenizer with all special names of a template."""
    names = ["<s>", "</s>", *dict.fromkeys(SPECIAL.findall(text))]
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400 + len(names),
        special_tokens=names,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([json.dumps(CHATS)], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@functools.cache
def tokenizer_in(folder: Path) -> Tokenizer:
    """Ours."""
    return read_tokenizer(folder).reading_special()


@functools.cache
def library_in(folder: Path) -> Any:
    """The library's."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def marked_labels(file: Path, folder: Path, chat: str) -> Labels:
    """A template with marks, beside the library."""
    name = file.stem.removesuffix("_training")
    tokenizer = tokenizer_in(folder)
    library = library_in(folder)
    conversation = row_of({"messages": CHATS[chat]})
    assert isinstance(conversation, Conversation)
    try:
        theirs = library.apply_chat_template(
            CHATS[chat],
            chat_template=file.read_text(),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
    except Exception as error:
        return Labels(name, chat, folder.name, None, str(error)[:100])
    try:
        made = tokens_of_chat(conversation, read_template(folder, file), tokenizer).tokens
    except Unusable as error:
        return Labels(name, chat, folder.name, refused(chat), why=reason(error))
    ours = [int(token & NO_TARGET == 0) for token in made.tolist()]
    same_ids = (made & IDS).tolist() == theirs["input_ids"]
    same = same_ids and ours == theirs["assistant_masks"]
    return Labels(
        name, chat, folder.name, equal=same, why="" if same else "other tokens or targets"
    )


def found_answers(file: Path, plain: Path, folder: Path, chat: str) -> Labels:
    """A template without marks, beside the one with marks that writes the same text."""
    name, conversation = plain.stem, row_of({"messages": CHATS[chat]})
    assert isinstance(conversation, Conversation)
    special = tokenizer_in(folder).special_names
    marked, published = read_template(folder, file), read_template(folder, plain)
    try:
        theirs = marked.write(conversation, special)
    except Unusable as error:
        return Labels(name, chat, folder.name, None, str(error)[:100])
    try:
        ours = published.write(conversation, special)
    except Unusable as error:
        return Labels(name, chat, folder.name, refused(chat), why=reason(error))
    text = ours.text
    if text != theirs.text:
        return Labels(name, chat, folder.name, None, "the training template writes another text")
    beyond = characters(theirs.answers) ^ characters(ours.answers)
    told = "".join(text[place] for place in sorted(beyond))
    said = characters(tuple(said_in(text, conversation, special)))
    others = [m["content"] for m in conversation.messages if m["role"] != "assistant"]
    heard = any(other in text[begin:end] for begin, end in ours.answers for other in others)
    same = not said & beyond and not heard
    return Labels(name, chat, folder.name, equal=same, why=repr(told) if told else "")


def refused(chat: str) -> bool | None:
    """Calls of tools may be refused: not every template writes them, or where they begin."""
    return None if chat == "tools" else False


def reason(error: Unusable) -> str:
    """What was said, without the template's name."""
    return str(error).partition(".jinja ")[2][:WHY_CHARS]


def said_in(
    text: str, conversation: Conversation, special: dict[str, int]
) -> Iterator[tuple[int, int]]:
    """Where answers stand, each with the first special token behind it."""
    place = 0
    for number in conversation.answers:
        content = conversation.messages[number]["content"]
        place = text.index(content, place)
        ends = [(at, -len(n)) for n in special if (at := text.find(n, place)) >= 0]
        at, length = min(ends)
        yield place, at - length
        place = at


def characters(spans: tuple[tuple[int, int], ...]) -> set[int]:
    """All places in spans."""
    return {place for begin, end in spans for place in range(begin, end)}


def main() -> int:
    """Compare all templates."""
    parser = command_line(__doc__)
    parser.add_argument("--templates", type=Path, required=True, help="a folder of *.jinja")
    parser.add_argument("--tokenizer", type=Path, action="append", default=[])
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    marked, found = [], []
    with tempfile.TemporaryDirectory() as place:
        for file in sorted(options.templates.glob("*_training.jinja")):
            small = Path(place) / "small" / file.stem
            named = [each for each in options.tokenizer if file.name.startswith(each.name)]
            if options.tokenizer and not named:
                continue
            folders = named or [small_tokenizer(small, file.read_text())]
            plain = file.with_name(file.name.replace("_training", ""))
            for folder in folders:
                marked += [marked_labels(file, folder, chat) for chat in CHATS]
                if plain.is_file():
                    found += [found_answers(file, plain, folder, chat) for chat in CHATS]
    for kind, each in (("marked", marked), ("found", found)):
        tried = [one for one in each if one.equal is not None]
        equal = sum(one.equal is True for one in tried)
        refused = len(each) - len(tried)
        print(f"{kind}: {equal} of {len(tried)} equal; {refused} not comparable")
        for one in tried:
            if not one.equal or one.why:
                print(f"  {one.template}, {one.chat}, {one.tokenizer}: {one.equal} {one.why}")
        for why in sorted({(one.template, one.why) for one in each if one.equal is None}):
            print(f"  {why[0]}: {why[1]}")
    result = {
        "marked": [asdict(one) for one in marked],
        "found": [asdict(one) for one in found],
    }
    write_json(options.json, result)
    return 0 if all(one.equal is not False for one in (*marked, *found)) else 1


if __name__ == "__main__":
    sys.exit(main())
