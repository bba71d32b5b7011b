"""Messages of one's own: a node adds two numbers for another. A field outside its range is refused.

python examples/typed_messages.py
"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import p2pswarm as ps

SMALL = ps.Range(-1000, 1000)  # what a peer sends is checked before anybody sees it


@ps.message(1000)  # codes from 1000 on are free for programs
@dataclass(frozen=True, slots=True)
class Add(ps.Message):
    a: Annotated[int, SMALL]
    b: Annotated[int, SMALL]


@ps.message(1001)
@dataclass(frozen=True, slots=True)
class Sum(ps.Message):
    value: int


async def main() -> None:
    async with ps.Node(listen="127.0.0.1:0") as server, ps.Node(listen="127.0.0.1:0") as client:
        server.rpc.serve_unary(Add, lambda _peer, add: Sum(add.a + add.b))

        reply = await client.rpc.call(server.contact, Add(40, 2), timeout_s=5.0)
        print(f"40 + 2: the server answers {reply}")
        try:
            await client.rpc.call(server.contact, Add(40, 2000), timeout_s=5.0)
        except ValueError as error:
            print(f"40 + 2000 is not sent: {error}")


asyncio.run(main())
