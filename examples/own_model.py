"""A recurrent model of one's own, in two stages: python examples/own_model.py"""

import asyncio

from torch import Tensor, nn

import p2pswarm as ps


class Recurrent(nn.GRU):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]  # no state goes on
        return x + super().forward(x)[0]


@ps.models.register("recurrent")
def recurrent(config: ps.models.GPT) -> nn.Sequential:
    width, tokens = config.d_model, config.vocabulary
    layers = [Recurrent(width, width, batch_first=True) for _ in range(config.layers)]
    return nn.Sequential(nn.Embedding(tokens, width), *layers, nn.Linear(width, tokens))


MODEL = ps.models.GPT(family="recurrent", d_model=48, layers=2, sequence_length=64)
RUN = ps.Run("recurrent", model=MODEL, stages=2, steps=20, optimizer={"learning_rate": 0.02})
TEXT = ps.data.Bytes(asyncio.__path__[0], suffixes=(".py",))


async def serve(address: str) -> None:
    async with ps.Node(listen="127.0.0.1:0", bootstrap=[address]) as node:
        await ps.Server(node, run=RUN.name, device="cpu").serve()


async def train() -> None:
    async with ps.Node(listen="127.0.0.1:0") as node, asyncio.TaskGroup() as servers:
        for _ in range(2):
            servers.create_task(serve(str(node.contact.address)))
        async with ps.Trainer(node, RUN, data=TEXT) as trainer:
            print(*[e async for e in trainer if isinstance(e, ps.events.HeldOut)], sep="\n")


asyncio.run(train())
