"""What a template writes round an answer."""

import pytest
from data.chats.chat_folders import CHANNEL_NAMES, CHANNELS, CHATML, MARKED, SPECIAL, make, read

from p2pswarm.data.chats.template import AnswerFrame

ENDING = CHATML.replace("'<|im_end|>' + '\n'", "'</s><|im_end|>' + '\n'")
THOUGHT = CHATML.replace(
    "message.role + '\n' + message.content",
    "message.role + '\n' + ('<t></t>' if message.role == 'assistant' else '') + message.content",
)
SPLIT = MARKED.replace(
    "message.content + '<|im_end|>'", "message.content }}{% endgeneration %}"
    "{% generation %}{{ '<|im_end|>\n'", 1
)  # fmt: skip
BROKEN = SPLIT.replace("'<|im_end|>\n'", "'<|im_end|>\n' }}{% endgeneration %}"
    "{% generation %}{{ '</s>'", 1)  # fmt: skip


@pytest.mark.parametrize(
    ("template", "special", "opening", "ends"),
    [
        (CHATML, SPECIAL, "", ["<|im_end|>"]),
        (MARKED, SPECIAL, "", ["<|im_end|>"]),
        (SPLIT, SPECIAL, "", ["<|im_end|>"]),
        (BROKEN, SPECIAL, "", ["</s>", "<|im_end|>"]),
        (ENDING, SPECIAL, "", ["</s>", "<|im_end|>"]),
        (THOUGHT, SPECIAL, "<t></t>", ["<|im_end|>"]),
        (CHANNELS, CHANNEL_NAMES, "<|channel|>final<|message|>", ["<|return|>"]),
    ],
)
def test_an_answer_has_what_opens_it_and_what_ends_it(tmp_path, template, special, opening, ends):
    tokenizer, written = read(make(tmp_path, template, special))
    names = tokenizer.special_names

    frame = written.answer_frame(names)

    last = frozenset(map(names.get, ends))
    inner = frozenset({names["<|end|>"]}) if template == CHANNELS else last
    assert frame == AnswerFrame(opening, last, inner)
