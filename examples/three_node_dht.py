"""A DHT of three nodes: one publishes a value, another finds it, and no server is in between.

python examples/three_node_dht.py
"""

import asyncio
import hashlib

import p2pswarm as ps

LOOPBACK = "127.0.0.1:0"  # this machine alone, any free port
KEY = hashlib.sha256(b"the answer").digest()  # a key is any 32 bytes


async def main() -> None:
    async with ps.Node(listen=LOOPBACK) as first:
        seeds = [str(first.contact.address)]
        async with (
            ps.Node(listen=LOOPBACK, bootstrap=seeds) as second,
            ps.Node(listen=LOOPBACK, bootstrap=seeds) as third,
        ):
            for node in (first, second, third):
                print(f"{node.contact.peer} listens at {node.contact.address}")

            holders = await second.dht.put(KEY, b"", b"42", ttl_s=60)
            print(f"the second node published 42; {holders} nodes hold it")

            records = await third.dht.get(KEY)
            record = records[b""]
            publisher = ps.PeerId.of_key(record.public_key)
            print(f"the third node found {record.value.decode()}, signed by {publisher}")


asyncio.run(main())
