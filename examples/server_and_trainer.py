"""A run in two processes: this one trains on Python's own sources, its child serves the model.

python examples/server_and_trainer.py
"""

import asyncio
import sys

import p2pswarm as ps

LOOPBACK = "127.0.0.1:0"  # this machine alone, any free port
TEXT = ps.data.Bytes(asyncio.__path__[0], suffixes=(".py",))
MODEL = ps.models.GPT(d_model=32, layers=2, heads=2, sequence_length=64)
RUN = ps.Run("two processes", model=MODEL, stages=1, steps=20, batch={"microbatches": 4})


async def serve(address: str) -> None:
    async with ps.Node(listen=LOOPBACK, bootstrap=[address]) as node:
        reason = await ps.Server(node, run=RUN.name, device="cpu").serve()
        print(f"the server's run is over: {reason}")


async def train() -> None:
    async with ps.Node(listen=LOOPBACK) as node:
        command = sys.executable, __file__, str(node.contact.address)
        child = await asyncio.create_subprocess_exec(*command)
        async with ps.Trainer(node, RUN, data=TEXT) as trainer:
            async for event in trainer:
                match event:
                    case ps.events.HeldOut(step=step, nats_per_token=loss):
                        print(f"step {step}: held-out loss {loss:.2f} nats a byte")
                    case ps.events.Ended():
                        print(f"{event.reason}: {event.tokens_per_s:.0f} tokens a second")
        await child.wait()


asyncio.run(serve(sys.argv[1]) if len(sys.argv) > 1 else train())
