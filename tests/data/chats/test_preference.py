"""Rows of preferences: what is the prompt, and what is refused."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.chats.conversation import Completion
from p2pswarm.data.chats.preference import is_preference, preference_of

USER = {"role": "user", "content": "2+2?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("4", "5"))
SYSTEM = {"role": "system", "content": "Be short."}


def test_texts_with_a_prompt_and_without():
    pair = preference_of({"prompt": "2+2=", "chosen": "4", "rejected": "5", "id": 1})
    assert (pair.chosen, pair.rejected) == (Completion("2+2=", "4"), Completion("2+2=", "5"))

    pair = preference_of(
        {"chosen": "Human: hi Assistant: yes", "rejected": "Human: hi Assistant: no"}
    )
    assert pair.chosen == Completion("Human: hi Assistant:", " yes")
    assert pair.rejected == Completion("Human: hi Assistant:", " no")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [SYSTEM, USER], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [SYSTEM, USER, GOOD], "rejected": [SYSTEM, USER, BAD]},
        {"prompt": " 2+2?\n", "chosen": [SYSTEM, USER, GOOD], "rejected": [SYSTEM, USER, BAD]},
        {
            "prompt": [SYSTEM, USER],
            "chosen": [SYSTEM, USER, GOOD],
            "rejected": [SYSTEM, USER, BAD],
        },
    ],
)
def test_messages_and_whole_conversations_have_the_same_prompt(row):
    pair = preference_of(row | {"tools": None, "score": 3})

    assert pair.chosen.messages == [SYSTEM, USER, GOOD]
    assert pair.rejected.messages == [SYSTEM, USER, BAD]
    assert pair.chosen.first_target == pair.rejected.first_target == 2


def test_answers_may_be_of_several_turns_and_unequal_lengths():
    pair = preference_of({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, GOOD, USER, BAD]})
    assert (pair.chosen.first_target, pair.chosen.answers) == (3, [3])

    pair = preference_of({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, BAD]})
    assert (pair.chosen.first_target, pair.chosen.answers) == (1, [1, 3])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "are equal: there is nothing to prefer"),
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}, "are equal"),
        ({"prompt": "a", "chosen": "b"}, "no 'rejected'"),
        ({"prompt": "a", "rejected": "b"}, "no 'chosen'"),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "'chosen' is empty"),
        ({"chosen": "ab", "rejected": "a"}, "'rejected' is empty"),
        ({"prompt": [USER], "chosen": "a", "rejected": "b"}, "'prompt' is no text"),
        ({"prompt": "a", "chosen": [GOOD], "rejected": "b"}, "one of .* is a text"),
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}, "how the other answer"),
        ({"chosen": [USER, GOOD], "rejected": [USER, USER]}, "the assistant says nothing"),
        ({"chosen": [USER, {"role": "x"}], "rejected": [USER]}, "message 1 of 'chosen' has the"),
        (
            {"prompt": "2+2?", "chosen": [GOOD], "rejected": [BAD]},
            "its 'prompt' is a text that no message before the answers has: write it as messages",
        ),
        ({"prompt": "2+2?", "chosen": [USER, GOOD], "rejected": [SYSTEM, BAD]}, "no message"),
        ({"prompt": "3+3?", "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "no message before"),
        ({"prompt": {"a": 1}, "chosen": [USER, GOOD], "rejected": [USER, BAD]}, "and no list"),
        ({"prompt": [USER], "chosen": [], "rejected": [BAD]}, "'chosen' has no messages"),
        ({"prompt": [USER], "chosen": [GOOD, BAD], "rejected": [BAD]}, "both of the assistant"),
    ],
)
def test_what_is_no_pair_is_refused(row, why):
    with pytest.raises(Unusable, match=why):
        preference_of(row)


def test_which_rows_are_pairs():
    assert is_preference(["chosen", "rejected", "messages"])
    assert not is_preference(["chosen", "prompt"])
