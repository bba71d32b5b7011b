"""A published model is trained on: python examples/fine_tune.py"""

import asyncio
import tempfile
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

import p2pswarm as ps

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
TEXT = ps.data.Bytes(asyncio.__path__[0], suffixes=(".py",))


def publish(folder: Path) -> None:
    """Stands for a download: config.json and model.safetensors. Or name "hf:OWNER/NAME"."""
    disable_progress_bar()
    config = AutoConfig.for_model("llama", vocab_size=256, **SIZES, **HEADS)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


async def serve(address: str, folder: Path) -> None:
    async with ps.Node(listen="127.0.0.1:0", bootstrap=[address]) as node:
        await ps.Server(node, device="cpu", pretrained=folder).serve()


async def train(folder: Path) -> None:
    publish(folder)
    run = ps.Run("fine", model=f"hf:{folder}", start="pretrained", steps=20)
    async with ps.Node(listen="127.0.0.1:0") as node, asyncio.TaskGroup() as servers:
        for _ in range(run.config.stages):
            servers.create_task(serve(str(node.contact.address), folder))
        async with ps.Trainer(node, run, data=TEXT) as trainer:
            print(*[e async for e in trainer if isinstance(e, ps.events.HeldOut)], sep="\n")


with tempfile.TemporaryDirectory() as made:
    asyncio.run(train(Path(made)))
