"""What a link costs to set up between two endpoints of one process over loopback.

    python bench/link_setup.py [--links 300] [--addresses 4] [--json FILE]

`new`: each link is with a peer that nobody has met, whose card is read for the first time. `again`:
the same peers again, whose cards are known byte for byte. Each figure is the processor time of both
sides together, per link. Run it on a quiet machine: it takes the median of five rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path

from p2pswarm.base.ids import Address
from p2pswarm.net.cards.card import DIRECT_MAX
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet

ROUNDS = 5
LOOPBACK = Address("127.0.0.1", 0)


async def linked_s(acceptor: Endpoint, identities: list[Identity], addresses: int) -> float:
    """The processor time of one link with each of these, in seconds."""
    said = [Address(f"8.8.4.{number + 1}", 4000) for number in range(addresses)]
    spent_s = 0.0
    for identity in identities:
        async with Endpoint(identity, SocketNet(), TransportConfig(), os.urandom) as dialler:
            dialler.announce(said)
            begun_s = time.process_time()
            await dialler.link(acceptor.contact)
            spent_s += time.process_time() - begun_s
    return spent_s / len(identities)


async def measure(links: int, addresses: int) -> dict[str, float]:
    """Microseconds a link."""
    new, again = [], []
    for _ in range(ROUNDS):
        async with Endpoint(
            Identity.generate(), SocketNet(), TransportConfig(), os.urandom
        ) as acceptor:
            await acceptor.listen(LOOPBACK)
            identities = [Identity.generate() for _ in range(links)]
            new.append(await linked_s(acceptor, identities, addresses))
            again.append(await linked_s(acceptor, identities, addresses))
    return {
        "new_us": round(1e6 * statistics.median(new), 1),
        "again_us": round(1e6 * statistics.median(again), 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--links", type=int, default=300, help="peers in each round")
    parser.add_argument(
        "--addresses", type=int, default=4, choices=range(1, DIRECT_MAX + 1), help="in each card"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.links, options.addresses))
    print(f"new {figures['new_us']} us, again {figures['again_us']} us of processor time a link")
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
