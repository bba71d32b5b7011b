"""Rows of preferences: two answers to one prompt, of which the first was chosen.

A row has `chosen` and `rejected`, with a `prompt`; or both are whole conversations, or whole texts,
and what they begin with in common is the prompt. All three are texts, or all are lists of messages.

Errors:  Unusable for a row that is none of these; whoever reads it adds the file and the number.
Source:  TRL's `extract_prompt` for the prompt that two answers have in common.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.conversation import (
    PROMPT,
    Completion,
    Conversation,
    Message,
    conversation_of,
    messages_in,
    require_said,
)

CHOSEN, REJECTED = "chosen", "rejected"
SIDES = CHOSEN, REJECTED


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt."""

    chosen: Conversation | Completion
    rejected: Conversation | Completion


def is_preference(fields: Sequence[str]) -> bool:
    """Return whether rows with these fields are pairs of answers."""
    return {CHOSEN, REJECTED} <= set(fields)


def preference_of(row: Mapping[str, Any]) -> Preference:
    """What a row says."""
    there = {name: value for name, value in row.items() if value is not None}
    for name in SIDES:
        if name not in there:
            raise Unusable(f"it has no {name!r}: a pair has a 'chosen' and a 'rejected' answer")
    if there[CHOSEN] == there[REJECTED]:
        raise Unusable("its 'chosen' and 'rejected' are equal: there is nothing to prefer")
    texts = [isinstance(there[name], str) for name in SIDES]
    if all(texts):
        return _of_texts(there)
    if any(texts):
        raise Unusable("one of 'chosen' and 'rejected' is a text: write both so, or as messages")
    return _of_messages(there)


def _of_texts(row: Mapping[str, Any]) -> Preference:
    prompt, answers = row.get(PROMPT), [row[name] for name in SIDES]
    if prompt is None:
        prompt = _common_text(*answers)
        answers = [answer.removeprefix(prompt) for answer in answers]
    if not isinstance(prompt, str):
        raise Unusable("its 'prompt' is no text, and 'chosen' is one: write all as texts")
    for name, answer in zip(SIDES, answers, strict=True):
        if not answer:
            raise Unusable(f"its {name!r} is empty: there is nothing to compare")
    return Preference(*(Completion(prompt, answer) for answer in answers))


def _common_text(one: str, other: str) -> str:
    """What two texts begin with; a space before what differs belongs to the answers."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return one[: sum(1 for _ in same)].removesuffix(" ")


def _of_messages(row: Mapping[str, Any]) -> Preference:
    answers = [messages_in(row[name], name) for name in SIDES]
    prompt, before = row.get(PROMPT), list[Message]()
    if isinstance(prompt, list):
        before = messages_in(prompt, PROMPT)
    if all(answer[: len(before)] == before for answer in answers):
        before = _common_messages(*answers)
        answers = [answer[len(before) :] for answer in answers]
    if not isinstance(prompt, list):
        require_said(prompt, before)
    for name, answer in zip(SIDES, answers, strict=True):
        if not answer:
            raise Unusable(f"its {name!r} is how the other answer begins: nothing tells them apart")
    return Preference(
        *(conversation_of([*before, *answer], len(before), row) for answer in answers)
    )


def _common_messages(one: list[Message], other: list[Message]) -> list[Message]:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return [message for message, _ in pairs]
