"""A model of transformers, trained here and used there: python examples/hf_model.py"""

import asyncio
import json
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

import p2pswarm as ps

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
CONFIG = {"model_type": "qwen3", "vocab_size": 256} | SIZES | HEADS
TEXT = ps.data.Bytes(asyncio.__path__[0], suffixes=(".py",))


async def serve(address: str) -> None:
    async with ps.Node(listen="127.0.0.1:0", bootstrap=[address]) as node:
        await ps.Server(node, device="cpu").serve()


async def train(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    run = ps.Run("qwen3", model=f"hf:{folder}", stages=1, steps=20, batch={"microbatches": 4})
    async with ps.Node(listen="127.0.0.1:0") as node, asyncio.TaskGroup() as servers:
        servers.create_task(serve(str(node.contact.address)))
        async with ps.Trainer(node, run, data=TEXT) as trainer:
            print(*[e async for e in trainer if isinstance(e, ps.events.HeldOut)], sep="\n")
            weights = load_file(await trainer.save(folder / "weights.safetensors"))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    print(f"transformers takes them: {model.load_state_dict(weights)}")


with tempfile.TemporaryDirectory() as made:
    asyncio.run(train(Path(made)))
