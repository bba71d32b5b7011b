"""Rows that are chats, or prompts with their completions: what they hold, and what is refused.

A row has `messages`, or `prompt` and `completion`, which are texts or lists of messages, or
`conversations` as ShareGPT writes them.

Errors:  Unusable for a row that is none of these; whoever reads it adds the file and the number.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.data.row_formats.field_path import TwiceError, object_once

MESSAGES, PROMPT, COMPLETION, SHARE_GPT = "messages", "prompt", "completion", "conversations"
ASSISTANT = "assistant"
TOOL_ROLES = ("tool", "function", "ipython")
INSTRUCTING = ("system", "developer")
ROLES = (*INSTRUCTING, "user", ASSISTANT, *TOOL_ROLES)
SHARE_GPT_ROLES = {
    "human": "user",
    "gpt": ASSISTANT,
    "chatgpt": ASSISTANT,
    "bing": ASSISTANT,
    "bard": ASSISTANT,
} | {role: role for role in ROLES}
TOOL_CALLS, TEXT = "tool_calls", "text"
EXTRAS = ("tools", "chat_template_kwargs")
SHOWN_CHARS = 40

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages; what the assistant says from one of them on is a target."""

    messages: list[Message]
    first_target: int = 0
    """The first message that may be a target."""
    tools: list[Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the row tells the template (`chat_template_kwargs`)."""

    @property
    def answers(self) -> list[int]:
        """The places of the messages that are targets."""
        places = range(self.first_target, len(self.messages))
        return [place for place in places if self.messages[place]["role"] == ASSISTANT]

    def with_argument_texts(self) -> "Conversation":
        """The same, in which the arguments of calls are their JSON text."""
        return replace(self, messages=[_with_argument_texts(each) for each in self.messages])


@dataclass(frozen=True, slots=True)
class Completion:
    """A text, and the text after it that is a target."""

    prompt: str
    completion: str


def is_chat(fields: Sequence[str]) -> bool:
    """Return whether rows with these fields are chats, or prompts with completions."""
    names = set(fields)
    return bool(names & {MESSAGES, SHARE_GPT}) or {PROMPT, COMPLETION} <= names


def row_of(row: Mapping[str, Any]) -> Conversation | Completion:
    """What a row says."""
    there = {name: value for name, value in row.items() if value is not None}
    if name := next((each for each in (MESSAGES, SHARE_GPT) if each in there), None):
        found = there[name]
        messages = messages_in(found, name) if name == MESSAGES else _of_share_gpt(found)
        made = conversation_of(messages, 0, there)
        _require_asked(made, there.get(PROMPT), name)
        return made
    if PROMPT not in there or COMPLETION not in there:
        raise Unusable(f"it has no {MESSAGES!r}, and no {PROMPT!r} with a {COMPLETION!r}")
    prompt, completion = there[PROMPT], there[COMPLETION]
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion:
            raise Unusable(f"its {COMPLETION!r} is empty: there is nothing to learn")
        return Completion(prompt, completion)
    before = messages_in(prompt, PROMPT)
    return conversation_of([*before, *messages_in(completion, COMPLETION)], len(before), there)


def _require_asked(chat: Conversation, prompt: object, name: str) -> None:
    """Unusable where nobody asks for the first answer, and a prompt beside the messages may."""
    before = chat.messages[: chat.answers[0]]
    if all(message["role"] in INSTRUCTING for message in before):
        if isinstance(prompt, list):
            raise Unusable(f"its 'prompt' is a list beside {name!r}: write one list of both")
        require_said(prompt, before)


def require_said(prompt: object, before: Sequence[Message]) -> None:
    """Raise Unusable for a prompt of text that none of the messages before answers has."""
    if prompt is None:
        return
    if not isinstance(prompt, str):
        raise Unusable(f"its {PROMPT!r} is no text and no list of messages")
    text = prompt.strip()
    if text and not any(text in message["content"] for message in before):
        raise Unusable(
            f"its {PROMPT!r} is a text that no message before the answers has: write it as "
            "messages, or remove it"
        )


def conversation_of(messages: list[Message], first: int, row: Mapping[str, Any]) -> Conversation:
    """Messages, and what else a row tells the template; `first`: the first that may be a target."""
    for place, (message, following) in enumerate(itertools.pairwise(messages)):
        if message["role"] == following["role"] == ASSISTANT:
            raise Unusable(f"messages {place} and {place + 1} are both of the assistant: join them")
    tools = _read(row.get("tools"), "tools", list)
    options = _read(row.get("chat_template_kwargs"), "chat_template_kwargs", dict) or {}
    made = Conversation(messages, first, tools, options)
    if not made.answers:
        raise Unusable("the assistant says nothing in it: there is nothing to learn")
    return made


def _read(value: object, name: str, kind: type) -> Any:
    """A value, which tables have as its JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=object_once)
        except TwiceError as error:
            raise Unusable(f"its {name!r} {error}") from error
        except (ValueError, RecursionError) as error:
            raise Unusable(f"its {name!r} is not JSON: {one_line(error, SHOWN_CHARS)}") from error
    if value is not None and not isinstance(value, kind):
        raise Unusable(f"its {name!r} is no {'list' if kind is list else 'object'}")
    return value


def messages_in(value: object, name: str) -> list[Message]:
    """The messages in a field, checked."""
    found = _read(value, name, list) or []
    if not found:
        raise Unusable(f"its {name!r} has no messages")
    return [_message(each, name, place) for place, each in enumerate(found)]


def _message(value: object, name: str, place: int) -> Message:
    where = f"message {place} of {name!r}"
    if not isinstance(value, dict):
        raise Unusable(f"{where} is no object with 'role' and 'content'")
    message = {key: each for key, each in value.items() if each is not None}
    role = message.get("role")
    if role not in ROLES:
        shown = repr(role)[:SHOWN_CHARS]
        raise Unusable(f"{where} has the role {shown}; there are: {', '.join(ROLES)}")
    calls = _read(message.pop(TOOL_CALLS, None), TOOL_CALLS, list) or []
    content = message.setdefault("content", "" if calls else None)
    if isinstance(content, list):
        message["content"] = _text_of_blocks(content, where)
    elif not isinstance(content, str):
        raise Unusable(f"the 'content' of {where} is no text")
    if calls:
        message[TOOL_CALLS] = [_call(each, f"a tool call of {where}") for each in calls]
    return message


def _text_of_blocks(blocks: list[Any], where: str) -> str:
    """The text of a content that is a list of blocks, as models that also see pictures have it."""
    texts = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != TEXT:
            shown = repr(kind if isinstance(block, dict) else block)[:SHOWN_CHARS]
            raise Unusable(f"the 'content' of {where} has a block {shown}: only text is learnt")
        if not isinstance(block.get(TEXT), str):
            raise Unusable(f"a block in the 'content' of {where} has no text")
        texts.append(block[TEXT])
    return "".join(texts)


def _call(value: object, where: str) -> dict[str, Any]:
    """A call of a tool. Arguments that are JSON text become values, as those who serve chats do.

    A template that writes arguments as JSON would write the text with quotes around it.
    """
    called = value.get("function", value) if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(called, dict):
        raise Unusable(f"{where} is no object with a 'function'")
    if not isinstance(called.get("name"), str):
        raise Unusable(f"{where} has no 'name'")
    arguments = _read(called.get("arguments"), "arguments", dict)
    if arguments is not None:
        called = called | {"arguments": arguments}
    return value | {"function": called} if "function" in value else called


def _with_argument_texts(message: Message) -> Message:
    calls = message.get(TOOL_CALLS)
    return message | {TOOL_CALLS: [_text_call(each) for each in calls]} if calls else message


def _text_call(call: dict[str, Any]) -> dict[str, Any]:
    called = call.get("function", call)
    if isinstance(called.get("arguments"), dict):
        called = called | {"arguments": json.dumps(called["arguments"], ensure_ascii=False)}
    return call | {"function": called} if "function" in call else called


def _of_share_gpt(value: object) -> list[Message]:
    found = _read(value, SHARE_GPT, list) or []
    messages: list[Message] = []
    for place, each in enumerate(found):
        where = f"message {place} of {SHARE_GPT!r}"
        if not isinstance(each, dict) or not isinstance(each.get("value"), str):
            raise Unusable(f"{where} has no text 'value'")
        role = SHARE_GPT_ROLES.get(str(each.get("from")))
        if role is None:
            shown = repr(each.get("from"))[:SHOWN_CHARS]
            raise Unusable(f"{where} is from {shown}; there are: human, gpt, system")
        messages.append({"role": role, "content": each["value"]})
    if not messages:
        raise Unusable(f"its {SHARE_GPT!r} has no messages")
    return messages
