import json

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.conversation import Completion, is_chat, row_of

USER = {"role": "user", "content": "2+2?"}
ANSWER = {"role": "assistant", "content": "4"}


def test_messages_say_who_answers():
    made = row_of({"messages": [USER, ANSWER, USER, ANSWER], "tools": None, "id": 7})

    assert made.answers == [1, 3]
    assert made.tools is None


def test_tables_have_messages_and_tools_as_text_and_columns_that_are_null():
    tools = [{"type": "function", "function": {"name": "add"}}]
    messages = [{**USER, "name": None}, {**ANSWER, "tool_calls": None}]

    made = row_of({"messages": json.dumps(messages), "tools": json.dumps(tools), "prompt": None})

    assert made.messages == [USER, ANSWER]
    assert made.tools == tools


def test_a_call_of_a_tool_needs_no_content():
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}

    assert row_of({"messages": [USER, call]}).messages[1]["content"] == ""


@pytest.mark.parametrize("calls", ["null", "[]", [], None])
def test_a_message_that_calls_nothing_has_no_calls(calls):
    """A template might write the begin of calls, or leave the content out."""
    assert row_of({"messages": [USER, ANSWER | {"tool_calls": calls}]}).messages == [USER, ANSWER]
    with pytest.raises(Unusable, match="'content' of message 1 of 'messages' is no text"):
        row_of({"messages": [USER, {"role": "assistant", "tool_calls": calls}]})


def test_arguments_that_are_json_text_are_values():
    """A template that writes them as JSON would put quotes around the text."""
    told = {"name": "add", "arguments": '{"a": 2}'}
    for call in ({"id": "1", "function": told}, told):
        row = {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}

        (made,) = row_of(row).messages[1]["tool_calls"]

        assert made.get("function", made) == {"name": "add", "arguments": {"a": 2}}
        assert made.get("id") == call.get("id")


def test_blocks_of_text_are_the_text():
    blocks = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?", "index": None}]

    made = row_of({"messages": [{"role": "user", "content": blocks}, ANSWER]})

    assert made.messages == [USER, ANSWER]


def test_share_gpt_is_read_as_messages():
    row = {"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}

    assert row_of(row).messages == [USER, ANSWER]


@pytest.mark.parametrize("prompt", ["2+2?", "another", [USER], 3])
def test_a_prompt_beside_messages_that_somebody_asks_is_passed_over(prompt):
    row = {"prompt": prompt, "messages": [USER, ANSWER]}

    assert row_of(row).messages == [USER, ANSWER]


def test_a_prompt_may_be_text_or_messages():
    assert row_of({"prompt": "2+2=", "completion": "4"}) == Completion("2+2=", "4")
    made = row_of({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]})
    assert made.answers == [3]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "x"}, "it has no 'messages', and no 'prompt' with a 'completion'"),
        ({"prompt": "x"}, "no 'prompt' with a 'completion'"),
        ({"prompt": "x", "completion": ""}, "'completion' is empty"),
        ({"prompt": "x", "completion": [ANSWER]}, "its 'prompt' is not JSON"),
        ({"prompt": "2+2?", "messages": [ANSWER]}, "its 'prompt' is a text that no message before"),
        ({"prompt": [USER], "messages": [ANSWER]}, "its 'prompt' is a list beside 'messages'"),
        ({"messages": []}, "'messages' has no messages"),
        ({"messages": "hello"}, "'messages' is not JSON"),
        ({"messages": "3"}, "'messages' is no list"),
        ({"messages": ["hello"]}, "message 0 of 'messages' is no object"),
        ({"messages": [USER]}, "the assistant says nothing"),
        ({"messages": [USER, ANSWER, ANSWER]}, "messages 1 and 2 are both of the assistant"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "has the role 'bot'; there are: system"),
        ({"messages": [{"content": "x"}]}, "has the role None"),
        ({"messages": [{"role": "user"}]}, "the 'content' of message 0 of 'messages' is no text"),
        ({"messages": [{"role": "user", "content": 4}]}, "is no text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]},
            "the 'content' of message 0 of 'messages' has a block 'image': only text is learnt",
        ),
        ({"messages": [{"role": "user", "content": ["2+2?"]}, ANSWER]}, r"has a block '2\+2\?'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, ANSWER]}, "has no text"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "a tool call of message 1 of 'messages' has no 'name'",
        ),
        ({"messages": [USER, {"role": "assistant", "tool_calls": ["add"]}]}, "is no object with"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": 3}]}, "'tool_calls' is no list"),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "tool_calls": [{"name": "add", "arguments": "(2"}]},
                ]
            },
            "its 'arguments' is not JSON",
        ),
        ({"messages": [USER, ANSWER], "tools": "{"}, "'tools' is not JSON"),
        ({"messages": [USER, ANSWER], "tools": {}}, "'tools' is no list"),
        ({"messages": [USER, ANSWER], "chat_template_kwargs": []}, "is no object"),
        ({"conversations": [{"from": "me", "value": "x"}]}, "is from 'me'; there are: human, gpt"),
        ({"conversations": [{"from": "gpt"}]}, "has no text 'value'"),
        ({"conversations": []}, "'conversations' has no messages"),
    ],
)
def test_a_row_that_cannot_be_learnt_from_says_why(row, why):
    with pytest.raises(Unusable, match=why):
        row_of(row)


def test_which_rows_are_chats():
    assert is_chat(["id", "messages"])
    assert is_chat(["conversations"])
    assert is_chat(["prompt", "completion"])
    assert not is_chat(["prompt", "text"])
