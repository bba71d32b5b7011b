"""An adapter teaches a frozen model to note orders: python examples/chat_adapter.py"""

import json
import tempfile
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from transformers.utils.logging import disable_progress_bar

import p2pswarm as ps
from p2pswarm.command_line import main

NUMBERS, THINGS = ["one", "two", "three", "four", "five"], ["cup", "fork", "spoon", "plate", "pan"]
WORDS = ["[none]", "[user]", "[assistant]", "[end]", "x", *"12345", *NUMBERS, *THINGS]
TEMPLATE = """{% for m in messages %}[{{ m.role }}] {{ m.content }} [end] {% endfor %}\
{% if add_generation_prompt %}[assistant] {% endif %}"""
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 256}
LORA = {"rank": 8, "alpha": 32, "train": ["embed_tokens", "lm_head"]}
ROWS, RATE = {"rows": 16, "microbatches": 1}, {"learning_rate": 2e-2}


def publish(folder: str) -> None:
    """Stands for a download: config, weights, tokenizer, chat template. Or "hf:OWNER/NAME"."""
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, "[none]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": "[end]", "additional_special_tokens": ["[user]", "[assistant]"]}
    made = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=TEMPLATE, **special)
    made.save_pretrained(folder)
    set_seed(1)
    disable_progress_bar()
    config = LlamaConfig(**SIZES, num_attention_heads=2, initializer_range=0.1)
    LlamaForCausalLM(config).save_pretrained(folder)


with tempfile.TemporaryDirectory() as name:
    base, chats, weights = (f"{name}/{each}" for each in ("base", "chats.jsonl", "w.safetensors"))
    publish(base)
    orders = {f"{word} {x}": f"{n} x {x}" for n, word in enumerate(NUMBERS, 1) for x in THINGS}
    said = [zip(("user", "assistant"), order, strict=True) for order in orders.items()]
    rows = [{"messages": [{"role": r, "content": text} for r, text in each]} for each in said]
    Path(chats).write_text("\n".join(map(json.dumps, rows * 4)))
    model = {"family": f"hf:{base}", "sequence_length": 24}
    run = ps.Run(
        "chat", model=model, steps=40, start="pretrained", adapter=LORA, batch=ROWS, optimizer=RATE
    )
    ps.train(run, ps.data.Tokenised(chats, base), weights=weights)
    main(["generate", weights, "--base", base, "--chat", "three fork", "--temperature", "0"])
    main(["export", weights, f"{name}/adapter", "--base", base])
