"""A node behind a NAT: it joins the swarm, and reaches other peers when it is told to.

Started by `matrix.py`: one line of JSON in, one line out; it leaves when stdin ends. It is a
program like a user's, with nothing but a `Node`: whatever a node does to reach a peer, this one
does. How it was reached shows in the link: at whose address its other end is, who dialled, and
what the node itself calls the path, where links know theirs (`link.path`).

Units:   seconds.
Errors:  those of `Node`, as a traceback, where no bootstrap node answers.
"""

import argparse
import asyncio
import json
import logging
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import p2pswarm as ps
from p2pswarm.net.cards.card import decode_card
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.rpc.base import Priority, Stream

LOOK_AGAIN_S = 0.01  # so closely the moment is known at which something has changed


@ps.message(1000)
@dataclass(frozen=True, slots=True)
class Hail(ps.Message):
    """Says something, so that it is said back."""

    text: bytes


@ps.message(1001)
@dataclass(frozen=True, slots=True)
class Parcel(ps.Message):
    """Announces bytes, and grants memory to them."""

    nbytes: int
    transfer: int


class Sayings(logging.Handler):
    """What the node has logged of its punching, and when."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message."""
        self.said.append(f"{record.created % 1000:.3f} {record.getMessage()}")


def shown(link: Link) -> dict[str, Any]:
    """What a link shows of its present path; a link that knows no paths is one itself."""
    path = getattr(link, "path", None)
    kind = getattr(path, "kind", None)
    return {
        "remote": (path or link).remote.host,
        "dialled": link.session.dialled if path is None else path.candidate is not None,
        "says": None if kind is None else kind.name.lower(),
    }


def links_to(node: ps.Node, peer: ps.PeerId) -> list[Link]:
    """The links to a peer, oldest first; only while one takes another's place there are two."""
    return [link for link in node.stack.endpoint.links() if link.peer == peer]


async def hailed(node: ps.Node, contact: ps.Contact, limit_s: float, *, again: bool) -> bool:
    """Say something to a peer and hear it again.

    `again`: a link to it was closed, and a dial that had come to this link may still be going on.
    Until it is over, calls get that link: False.
    """
    said = Hail(b"ahoy")
    try:
        heard = await node.rpc.call(contact, said, timeout_s=limit_s)
    except ps.errors.NotServing:
        return True  # a node of the command line; it has answered
    except ps.errors.LinkLost:
        if again:
            return False
        raise
    if heard != said:
        raise ps.errors.BadMessage("it did not say the same")
    return True


async def reach(node: ps.Node, order: dict[str, Any]) -> dict[str, Any]:
    """Call a peer to which no link is up; then wait for a relayed link to become direct."""
    loop = asyncio.get_running_loop()
    contact = met(node, order["card"])
    assert contact.peer is not None
    known = links_to(node, contact.peer)
    for link in known:
        link.close("to be dialled afresh")  # the DHT has dialled already
    until_s = loop.time() + order["limit_s"]
    try:
        begin_s = loop.time()
        while not await hailed(node, contact, order["limit_s"], again=bool(known)):
            if loop.time() > until_s:
                return {"reached": False, "why": "calls get the link that was closed before"}
            await asyncio.sleep(LOOK_AGAIN_S)
            begin_s = loop.time()
    except ps.errors.SwarmError as error:
        return {"reached": False, "why": str(error)}
    taken_s = loop.time() - begin_s
    links = links_to(node, contact.peer)
    if not links:
        return {"reached": False, "why": "the link ended as soon as the call was answered"}
    link = links[-1]
    told = {"reached": True, "seconds": taken_s, **shown(link)}

    until_s = loop.time() + order["upgrade_s"]
    now = told

    def relayed(shown: dict[str, Any]) -> bool:
        """Whether it leads through a relay; a node of another attempt may serve as one, too."""
        return shown["remote"] in order["relays"] or shown["says"] == "relayed"

    while relayed(now) and loop.time() < until_s:
        await asyncio.sleep(LOOK_AGAIN_S)
        link = next(iter(links_to(node, contact.peer)[-1:]), link)
        now = {"seconds": loop.time() - begin_s, **shown(link)}
    told["relayed"] = relayed(told)
    if told["relayed"] and not relayed(now):
        told["upgraded"] = now
    return told


async def take(stream: Stream, parcel: Parcel) -> None:
    """Receive a parcel, and drop it."""
    arrival = stream.expect(memoryview(bytearray(parcel.nbytes)))
    await stream.send(Parcel(0, arrival.transfer))
    await arrival.wait()


async def send(node: ps.Node, order: dict[str, Any], sayings: Sayings) -> dict[str, Any]:
    """Send bytes to a peer in bulk, and tell how long it took and what was punched meanwhile."""
    contact = met(node, order["card"])
    data = bytes(order["mib"] << 20)
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    async with node.rpc.open_stream(contact, Parcel(len(data), 0), order["limit_s"]) as stream:
        granted = await stream.receive()
        assert isinstance(granted, Parcel)
        await stream.send_bulk(granted.transfer, memoryview(data), Priority.TENSOR)
        assert await stream.receive() is None
    seconds = loop.time() - begin_s
    (link,) = links_to(node, contact.peer)[-1:]
    return {"seconds": seconds, "bulk": link.stats.bulk_connections, "said": sayings.said}


async def follow(node: ps.Node, order: dict[str, Any]) -> dict[str, Any]:
    """Call a peer again and again for a while; tells when the link's path was another one."""
    contact = met(node, order["card"])
    loop = asyncio.get_running_loop()
    begin_s, calls = loop.time(), 0
    seen: list[tuple[float, str | None]] = []
    while loop.time() < begin_s + order["seconds"]:
        assert await hailed(node, contact, order["limit_s"], again=False)
        calls += 1
        says = shown(links_to(node, contact.peer)[-1])["says"]
        if not seen or seen[-1][1] != says:
            seen.append((loop.time() - begin_s, says))
        await asyncio.sleep(LOOK_AGAIN_S)
    return {"calls": calls, "seen": seen}


def met(node: ps.Node, told: str) -> ps.Contact:
    """The contact of a peer that was told to us with its card, as if we had met the peer."""
    contact, card = pickle.loads(bytes.fromhex(told))
    if card is not None:
        node.stack.endpoint.cards.learn(decode_card(card), contact.address.host)
    return contact


async def main() -> None:
    """Be a node until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", action="append", required=True)
    parser.add_argument("--listen", default="")
    parser.add_argument("--relay", action="append", default=[])
    flags = parser.parse_args()
    sayings = Sayings()
    logging.getLogger("p2pswarm.reach.punch").addHandler(sayings)
    logging.getLogger("p2pswarm.reach.punch").setLevel(logging.INFO)
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    network = {"relays": flags.relay}
    async with ps.Node(bootstrap=flags.bootstrap, listen=flags.listen, network=network) as node:
        node.rpc.serve_unary(Hail, lambda _, hail: hail)
        node.rpc.serve_stream(Parcel, take)
        print(json.dumps({"ready": str(node.contact.address)}), flush=True)
        while line := await lines.readline():
            order = json.loads(line)
            if order["do"] == "card":  # read by our own kind alone, over a pipe
                ours = node.contact, node.stack.endpoint.card.data
                told = {"card": pickle.dumps(ours).hex()}
            elif order["do"] == "send":
                told = await send(node, order, sayings)
            elif order["do"] == "follow":
                told = await follow(node, order)
            elif order["do"] == "said":
                told = {"said": sayings.said}
            else:
                told = await reach(node, order)
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
