"""Folders of small tokenizers that chat: their special tokens, and a template."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from p2pswarm.data.chats.template import ChatTemplate, read_template
from p2pswarm.data.tokenizer import Tokenizer, read_tokenizer

SPECIAL = ("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
WORDS = ["user assistant system: what is 2 + 2? It is 4.", "héllo wörld, 日本語 12 cats\n\n"] * 4
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + "
    "'<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHANNEL_NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
CHANNELS = (  # as gpt_oss names a channel before what is said in it
    "{% for message in messages %}{{ '<|start|>' + message.role }}"
    "{{ '<|channel|>final' if message.role == 'assistant' else '' }}"
    "{{ '<|message|>' + message.content }}"
    "{{ '<|return|>' if loop.last and message.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)


def make(folder: Path, template: str | None = CHATML, special: tuple[str, ...] = SPECIAL) -> Path:
    """A folder of a tokenizer, as transformers writes it."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300 + len(special),
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(WORDS, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": "<s>",
        "pad_token": "<|im_end|>",
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def read(folder: Path) -> tuple[Tokenizer, ChatTemplate]:
    """The tokenizer of a folder, which reads special tokens, and its template."""
    return read_tokenizer(folder).reading_special(), read_template(folder, None)


def learnt(document, tokenizer: Tokenizer) -> list[str]:
    """The targets of a document, runs of them, as they are written."""
    runs, run = [], []
    names = {number: name for name, number in tokenizer.special_names.items()}
    for token in document.tolist():
        if token & 1 << 22:
            if run:
                runs.append(run)
            run = []
        else:
            run.append(token)
    runs += [run] if run else []
    return [_text(run, names, tokenizer) for run in runs]


def _text(run: list[int], names: dict[int, str], tokenizer: Tokenizer) -> str:
    parts, plain = [], []
    for token in [*run, None]:
        if token is None or token in names:
            parts.append("".join(tokenizer.decode(plain)))
            plain = []
            parts.append(names.get(token, ""))
        else:
            plain.append(token)
    return "".join(parts)
