"""Conversations and completions as tokens, with marks on all that is no target.

A text is encoded once, and as a whole: tokens of parts that are encoded apart are others. A token
is a target if any of its characters is.

Errors:  Unusable for a row in which nothing can be learnt, or that would forge a special token.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.conversation import Completion, Conversation, Message
from p2pswarm.data.chats.template import ChatTemplate, WrittenChat, names_at_end
from p2pswarm.data.rows import begin_of, encoded, end_of
from p2pswarm.data.samples.target_marks import marked_document
from p2pswarm.data.tokenizer import Tokenizer


class TokenisedRow(NamedTuple):
    """A row as a document."""

    tokens: NDArray[np.int32]
    """With marks."""
    text_bytes: int
    """Of what they stand for."""


def tokens_of_chat(
    chat: Conversation, template: ChatTemplate, tokenizer: Tokenizer
) -> TokenisedRow:
    """The tokens of a conversation; `tokenizer` reads special tokens, which the template writes."""
    special = tokenizer.special_names
    refuse_forged(chat.messages, special)
    if forged := _forged(chat.tools, special):
        raise Unusable(f"its tools have {forged!r} in them, which is a special token: remove it")
    written = template.write(chat, special)
    tokens, places = tokenizer.encode_with_places(written.text)
    targets = np.zeros(len(tokens), dtype=bool)
    begins, ends = (np.array(side) for side in zip(*places, strict=True))
    for begin, end in written.answers:
        targets |= (begins < end) & (ends > begin)
    _require_ends(chat, written, special)
    return TokenisedRow(marked_document(tokens, targets), len(written.text.encode()))


def _require_ends(chat: Conversation, written: WrittenChat, special: Iterable[str]) -> None:
    """Raise Unusable unless each answer ends with a special token that is a target."""
    said = [written.text[begin:end] for begin, end in written.answers]
    lacking = next((n for n, each in enumerate(said) if not names_at_end(each, special)), None)
    if said and lacking is None:
        return
    places = chat.answers if len(said) == len(chat.answers) else ()
    whose = f"the turn of message {places[lacking]}" if places and lacking is not None else "a turn"
    raise Unusable(
        f"the template marks no token that ends {whose} as what the assistant says: nothing would "
        "teach the model to stop: name another in train.chat_template"
    )


def refuse_forged(messages: Sequence[Message], special: Iterable[str]) -> None:
    """Raise Unusable for a message with the name of a special token: it would forge a turn."""
    for place, message in enumerate(messages):
        said = [each for name, each in message.items() if name != "role"]
        if forged := _forged(said, special):
            raise Unusable(
                f"message {place} has {forged!r} in it, which is a special token: remove it"
            )


def _forged(value: object, special: Iterable[str]) -> str | None:
    """A special token's name in a text, or in the texts of an object or a list."""
    for text in _texts_of(value):
        for name in special:
            if name in text:
                return name
    return None


def _texts_of(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from itertools.chain.from_iterable(_texts_of(each) for each in value.items())
        case list() | tuple():
            yield from itertools.chain.from_iterable(map(_texts_of, value))


def tokens_of_completion(row: Completion, tokenizer: Tokenizer | None) -> TokenisedRow:
    """The tokens of a prompt and its completion, and the one that ends a document.

    The completion begins where the tokens of the prompt alone part from those of both.
    """
    texts = [text.encode("utf-8", "replace") for text in (row.prompt, row.prompt + row.completion)]
    prompt, both = encoded(texts, tokenizer)
    begin = begin_of(tokenizer)
    tokens = np.concatenate([begin, both, end_of(tokenizer)])
    shared = min(len(prompt), len(both))
    differing = np.flatnonzero(prompt[:shared] != both[:shared])
    first = len(begin) + (int(differing[0]) if len(differing) else shared)
    return TokenisedRow(marked_document(tokens, np.arange(len(tokens)) >= first), len(texts[1]))
