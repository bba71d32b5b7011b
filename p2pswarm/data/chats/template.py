"""Chat templates: the text of a conversation, and which of its characters the assistant says.

A template may mark what an assistant says (`{% generation %}`). Hardly any published one does. Then
each answer is found by rendering the conversation a second time with names in place of answers:
an answer begins behind what the template writes to have one generated, and ends with the special
token that ends its turn. An answer that calls tools is what the template adds for it to the chat
before it.

The library renders, in jinja's sandbox and with its own variables.

Errors:  Unusable for a template that is missing, or that cannot write a conversation.
"""

import functools
import importlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from p2pswarm.base.errors import Unusable, missing_extra, one_line
from p2pswarm.base.files import read_small
from p2pswarm.data.chats.conversation import TOOL_CALLS, TOOL_ROLES, Conversation
from p2pswarm.data.sources import TOKENIZER_FILE
from p2pswarm.data.tokenizer_folder import is_for_library, library_tokenizer

LIBRARY = "transformers"
TEMPLATE_BYTES_MAX = 256 << 10  # the longest that is published has 30 KB
REASON_CHARS_MAX = 200
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
NAME = "P2PSWARMANSWER{}X7F3A"
TEMPLATE_FILE = "chat.json"
SAMPLE = ({"role": "user", "content": "hello"}, {"role": "assistant", "content": "there"})
REMEDY = "name a template with {% generation %} in train.chat_template"

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WrittenChat:
    """A conversation as a template writes it."""

    text: str
    answers: tuple[Span, ...]
    """What the assistant says, from a character to another."""


@dataclass(frozen=True, slots=True)
class AnswerFrame:
    """What a template writes round an answer."""

    opening: str
    """Between what asks for it and its text: the name of a channel, or an empty thought."""
    ends: frozenset[int]
    """The special tokens that end the last answer of a chat."""
    inner_ends: frozenset[int]
    """Those that end an answer after which the chat goes on."""


class ChatTemplate:
    """A template, with the names of special tokens that it may write."""

    def __init__(self, text: str, where: str, names: Mapping[str, Any]) -> None:
        """`names`: the template's variables, such as bos_token."""
        self.text, self._where, self._names = text, where, names
        self.marks = GENERATION.search(text) is not None
        """True if it says by itself what the assistant says."""

    @property
    def as_json(self) -> str:
        """What `kept_template` reads."""
        return json.dumps({"template": self.text, "names": self._names}, indent=1) + "\n"

    @property
    def token_names(self) -> dict[str, str]:
        """The special tokens that it may write, by their names in it, such as bos_token."""
        return {name: token for name, token in self._names.items() if isinstance(token, str)}

    def prompt(self, messages: list[dict[str, Any]]) -> str:
        """The text after which the assistant speaks."""
        return self._render(Conversation(messages), messages, add_generation_prompt=True)

    def answer_frame(self, special: Mapping[str, int]) -> AnswerFrame:
        """What stands round an answer of text; `special`: names of special tokens."""
        *asked, answer = chat = [*SAMPLE * 2]
        written, prompt = self.write(Conversation(chat), special), self.prompt(asked)
        spans = written.answers or ((0, 0),)
        inner, last = (
            frozenset(special[name] for name in names_at_end(written.text[begin:end], special))
            for begin, end in (spans[0], spans[-1])
        )
        before = written.text[: max(0, written.text.rfind(answer["content"], 0, spans[-1][1]))]
        opening = before.removeprefix(prompt) if before.startswith(prompt) else ""
        return AnswerFrame(opening, last, inner)

    def write(self, chat: Conversation, special: Mapping[str, int]) -> WrittenChat:
        """The text of a conversation, and its answers; `special`: names of special tokens."""
        try:
            written = self._written(chat, special)
        except Unusable as error:
            with_texts = chat.with_argument_texts()
            if with_texts == chat:
                raise
            try:  # some templates take arguments for text, as DeepSeek's do
                written = self._written(with_texts, special)
            except Unusable:
                raise error from None
        said = "".join(written.text[begin:end] for begin, end in written.answers)
        for place in chat.answers:
            for call in chat.messages[place].get(TOOL_CALLS, ()):
                name = call.get("function", call)["name"]
                if name not in said:
                    raise Unusable(
                        f"{self._where} does not write that message {place} calls {name!r}: name a "
                        "template for tools in train.chat_template"
                    )
        return written

    def _written(self, chat: Conversation, special: Mapping[str, int]) -> WrittenChat:
        return self._marked(chat) if self.marks else self._found(chat, special)

    def _found(self, chat: Conversation, special: Mapping[str, int]) -> WrittenChat:
        """The same of a template without marks."""
        text = self._render(chat, chat.messages)
        calls = [place for place in chat.answers if chat.messages[place].get(TOOL_CALLS)]
        plain = [place for place in chat.answers if place not in calls]
        spans = [self._called_span(chat, text, place, special) for place in calls]
        for place, (begin, end) in zip(
            plain, self._plain_spans(chat, text, plain, special) if plain else (), strict=True
        ):
            spans.append((max(begin, self._end_of_tools(chat, text, place)), end))
        return WrittenChat(text, tuple(sorted(spans)))

    def _end_of_tools(self, chat: Conversation, text: str, place: int) -> int:
        """Where the output of tools ends before an answer; 0 if there is none.

        Some templates go on in one turn after it, so what begins a turn is before their calls.
        """
        if not place or chat.messages[place - 1]["role"] not in TOOL_ROLES:
            return 0
        before = self._render(chat, chat.messages[:place])
        if not text.startswith(before):
            raise Unusable(
                f"{self._where} does not show where message {place} begins behind the output of "
                f"tools: {REMEDY}"
            )
        return len(before)

    def _plain_spans(
        self, chat: Conversation, text: str, places: list[int], special: Mapping[str, int]
    ) -> Sequence[Span]:
        """Where answers are that are text alone."""
        named = list(chat.messages)
        for place in places:
            named[place] = named[place] | {"content": NAME.format(place)}
        pieces = re.split(NAME.format(r"\d+"), self._render(chat, named))
        answers = [chat.messages[place]["content"] for place in places]
        at_end = places[-1] == len(chat.messages) - 1
        for contents in (answers, [answer.strip() for answer in answers]):
            spans = self._spans(chat, text, pieces, contents, special, at_end=at_end)
            if spans is not None:
                return spans
        raise Unusable(f"{self._where} changes what the assistant says: {REMEDY}")

    def _called_span(
        self, chat: Conversation, text: str, place: int, special: Mapping[str, int]
    ) -> Span:
        """Where an answer is that calls tools: what the template adds to the chat before it.

        The chat that ends with it has to be written as the whole one begins.
        """
        before, upto = (chat.messages[:end] for end in (place, place + 1))
        plain, whole = (self._render(chat, some) if some else "" for some in (before, upto))
        asked = self._render(chat, before, add_generation_prompt=True) if before else plain
        one, _ = _any_of(tuple(special))
        ends = [found.end() for found in one.finditer(whole, len(plain))]
        begin = _parting(asked, whole, one)
        shown = asked.startswith(plain) and begin > len(plain) and ends and ends[-1] > begin
        if not shown or whole[: ends[-1]] != text[: ends[-1]]:
            raise Unusable(
                f"{self._where} does not show where message {place}, which calls tools, begins and "
                f"ends: {REMEDY}"
            )
        return begin, ends[-1]

    def _marked(self, chat: Conversation) -> WrittenChat:
        text, found = self._called(chat, chat.messages, return_assistant_tokens_mask=True)
        said = sum(message["role"] == "assistant" for message in chat.messages)
        spans = _joined((int(begin), int(end)) for begin, end in found[0])
        if chat.first_target:
            if len(spans) != said:
                raise Unusable(f"{self._where} marks {len(spans)} of {said} answers")
            spans = spans[said - len(chat.answers) :]
        return WrittenChat(text[0], tuple(spans))

    def _spans(
        self,
        chat: Conversation,
        text: str,
        pieces: list[str],
        contents: list[str],
        special: Mapping[str, int],
        *,
        at_end: bool,
    ) -> tuple[Span, ...] | None:
        """Where the answers are, each with the end of its turn; None if the text lacks them."""
        whole = pieces[0] + "".join(a + b for a, b in zip(contents, pieces[1:], strict=False))
        if len(pieces) != len(contents) + 1 or whole != text:
            return None
        spans, place, prompt = list[Span](), 0, self._prompt(chat)
        last = pieces[-1] if at_end else ""
        one, several = _any_of(tuple(special))
        run = several.search(last)
        turn_end = run[0] if run else ""
        for before, content, after in zip(pieces[:-1], contents, pieces[1:], strict=True):
            begin = place + _end_of_prompt(before, prompt, one)
            place += len(before) + len(content)
            first = one.search(after)
            if first is None:
                raise Unusable(
                    f"{self._where} writes no token that ends a turn: nothing would teach the "
                    f"model to stop: {REMEDY}"
                )
            end = place + first.start()
            whole_end = turn_end.startswith(first[0]) and text.startswith(turn_end, end)
            spans.append((begin, end + len(turn_end if whole_end else first[0])))
        return tuple(spans)

    def _prompt(self, chat: Conversation) -> str:
        """What the template writes to have an answer generated.

        It may depend on all that was said, so each row has its own.
        """
        first = next((place for place in chat.answers if place), 0)
        before = chat.messages[:first] or [*SAMPLE[:1]]  # nobody asks for what a chat begins with
        plain = self._render(chat, before)
        asked = self._render(chat, before, add_generation_prompt=True)
        return asked[len(plain) :] if asked.startswith(plain) else ""

    def _render(self, chat: Conversation, messages: list[dict[str, Any]], **how: bool) -> str:
        return str(self._called(chat, messages, **how)[0][0])

    def _called(self, chat: Conversation, messages: list[dict[str, Any]], **how: bool) -> Any:
        names = {**self._names, **chat.options}
        try:
            return _library().render_jinja_template(
                [messages], tools=chat.tools, chat_template=self.text, **how, **names
            )
        except Exception as error:  # as many kinds as jinja and templates have
            reason = one_line(error, REASON_CHARS_MAX)
            raise Unusable(f"{self._where} cannot write it: {reason}") from error


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans without those that are empty; one that follows another at once belongs to it.

    Some templates mark an answer and the end of its turn apart.
    """
    joined = list[Span]()
    for begin, end in spans:
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        elif begin < end:
            joined.append((begin, end))
    return joined


def names_at_end(said: str, special: Iterable[str]) -> list[str]:
    """The special tokens that an answer ends with, the last one first; white space is between."""
    names, found, rest = tuple(special), list[str](), said.rstrip()
    while rest.endswith(names):
        found.append(max((name for name in names if rest.endswith(name)), key=len))
        rest = rest.removesuffix(found[-1]).rstrip()
    return found


@functools.lru_cache(maxsize=8)
def _any_of(names: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What finds the first of these names in a text, and what finds all that follow it at once."""
    one = "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"  # nothing
    return re.compile(one), re.compile(f"(?:{one})+")


def _parting(asked: str, whole: str, special: re.Pattern[str]) -> int:
    """Where two texts part: at the end of the first one, or behind a part of it."""
    ends = (end for end in _parts(asked, special) if whole.startswith(asked[:end]))
    return max(ends, default=0)


def _end_of_prompt(before: str, prompt: str, special: re.Pattern[str]) -> int:
    """Where an answer begins in the text before it: behind what is written to have one generated.

    Some templates write more there, such as the begin of a thought; then behind the parts of it
    that the last turn has.
    """
    parts = (prompt[:end] for end in _parts(prompt, special))
    ends = [at + len(part) for part in parts if (at := before.rfind(part)) >= 0]
    return max(ends, default=len(before))


def _parts(text: str, special: re.Pattern[str]) -> list[int]:
    """The ends of a text's special tokens and lines, and its own.

    Within a line texts that go on differently may begin with the same letters.
    """
    lines = (place + 1 for place, letter in enumerate(text) if letter == "\n")
    return [*lines, *(found.end() for found in special.finditer(text)), *filter(None, [len(text)])]


def kept_template(file: Path) -> ChatTemplate:
    """The template in a file of ours, beside weights."""
    data = read_small(file, 2 * TEMPLATE_BYTES_MAX, "it is no chat template of a run")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    match found:
        case {"template": str(text), "names": dict(names)}:
            return ChatTemplate(text, f"the chat template of {file}", names)
    raise Unusable(f"{file}: is no chat template of a run: copy it again")


def template_beside(weights: Path) -> Path:
    """The name of the template's file that belongs to a file of weights."""
    return weights.with_name(f"{weights.stem}.{TEMPLATE_FILE}")


class NoTemplate(Unusable):
    """Nobody has named a template, and the tokenizer has none."""


def read_template(folder: Path | None, file: Path | None) -> ChatTemplate:
    """The template of a tokenizer's folder, or of `file`, with the folder's special tokens.

    NoTemplate without any.
    """
    names: dict[str, Any] = {}
    text = None
    if folder is not None and is_for_library(folder / TOKENIZER_FILE):
        made = library_tokenizer(folder)
        names = dict(made.special_tokens_map)
        text = _of_tokenizer(made, folder) if file is None else None
    if file is not None:
        data = read_small(file, TEMPLATE_BYTES_MAX, "it is no chat template")
        text = data.decode("utf-8", "replace")
    if not text:
        raise NoTemplate(
            f"{folder or 'the tokenizer'}: has no chat template: name one in train.chat_template, "
            "or the tokenizer of a model that chats"
        )
    where = str(file or folder)
    if len(text.encode()) > TEMPLATE_BYTES_MAX:
        raise Unusable(f"{where}: a chat template of more than {TEMPLATE_BYTES_MAX:,} bytes")
    return ChatTemplate(text, f"the chat template of {where}", names)


def _of_tokenizer(made: Any, folder: Path) -> str | None:
    try:
        found = made.get_chat_template()
    except ValueError as error:
        if made.chat_template is None:
            return None
        reason = one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"{folder}: its chat template cannot be chosen: {reason}") from error
    return str(found)


def _library() -> ModuleType:
    try:
        return importlib.import_module(f"{LIBRARY}.utils.chat_template_utils")
    except ImportError as error:
        raise missing_extra(
            "chats are written by a template, which takes transformers", "hf"
        ) from error
