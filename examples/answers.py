"""Two servers teach a small model to add; only answers count: python examples/answers.py"""

import asyncio
import json
import tempfile
from pathlib import Path

import p2pswarm as ps

LOOPBACK = "127.0.0.1:0"  # this machine alone, any free port
MODEL = ps.models.GPT(d_model=64, layers=2, heads=2, sequence_length=63)
BATCH = {"samples": "whole", "microbatches": 2, "rows": 8, "evaluate_every": 100}
RUN = ps.Run("answers", model=MODEL, stages=2, steps=100, batch=BATCH)
SUMS = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(5) for b in range(5)]


async def serve(address: str) -> None:
    async with ps.Node(listen=LOOPBACK, bootstrap=[address]) as node:
        await ps.Server(node, run=RUN.name, device="cpu").serve()


async def train(folder: Path) -> Path:
    file = folder / "sums.jsonl"  # or rows of messages, and a tokenizer that has a template
    file.write_text("".join(json.dumps(row) + "\n" for row in SUMS * 8))
    async with ps.Node(listen=LOOPBACK) as node, asyncio.TaskGroup() as servers:
        for _ in range(RUN.config.stages):
            servers.create_task(serve(str(node.contact.address)))
        async with ps.Trainer(node, RUN, data=ps.data.Bytes(file)) as trainer:
            losses = [e.loss async for e in trainer if isinstance(e, ps.events.Stepped)]
            print(f"nats a target: {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
            return await trainer.save(folder / "answers.safetensors")


with tempfile.TemporaryDirectory() as made:
    model = ps.load(asyncio.run(train(Path(made))))
    print("1+2=" + "".join(model.generate_text("1+2=", tokens=1, temperature=0.0)))
