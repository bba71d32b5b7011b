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
import pickle
import sys
from dataclasses import dataclass
from typing import Any

import p2pswarm as ps
from p2pswarm.transport.link_io import Link

LOOK_AGAIN_S = 0.01  # how closely the moment is known at which a relayed link became a direct one


@ps.message(1000)
@dataclass(frozen=True, slots=True)
class Hail(ps.Message):
    """Says something, so that it is said back."""

    text: bytes


def shown(link: Link) -> dict[str, Any]:
    """What a link shows of its present path; a link that knows no paths is one itself."""
    path = getattr(link, "path", None)
    kind = getattr(path, "kind", None)
    return {
        "remote": (path or link).remote.host,
        "dialled": link.session.dialled if path is None else path.way is not None,
        "says": None if kind is None else kind.name.lower(),
    }


def links_to(node: ps.Node, peer: ps.PeerId) -> list[Link]:
    """The links to a peer, oldest first; only while one takes another's place there are two."""
    return [link for link in node.stack.endpoint.links() if link.peer == peer]


async def reach(node: ps.Node, order: dict[str, Any]) -> dict[str, Any]:
    """Call a peer to which no link is up; then wait for a relayed link to become direct."""
    loop = asyncio.get_running_loop()
    contact: ps.Contact = pickle.loads(bytes.fromhex(order["card"]))
    assert contact.peer is not None
    for link in links_to(node, contact.peer):  # the DHT has dialled already
        link.close("to be dialled afresh")
    begin_s = loop.time()
    try:
        hail = Hail(b"ahoy")
        if await node.rpc.call(contact, hail, timeout_s=order["limit_s"]) != hail:
            raise ps.errors.BadMessage("it did not say the same")
    except ps.errors.NotServing:
        pass  # a node of the command line; it has answered
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
    while now["remote"] in order["relays"] and loop.time() < until_s:
        await asyncio.sleep(LOOK_AGAIN_S)
        link = next(iter(links_to(node, contact.peer)[-1:]), link)
        now = {"seconds": loop.time() - begin_s, **shown(link)}
    if told["remote"] in order["relays"] and now["remote"] not in order["relays"]:
        told["upgraded"] = now
    return told


async def main() -> None:
    """Be a node until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", action="append", required=True)
    parser.add_argument("--listen", default="")
    flags = parser.parse_args()
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    async with ps.Node(bootstrap=flags.bootstrap, listen=flags.listen) as node:
        node.rpc.serve_unary(Hail, lambda _, hail: hail)
        print(json.dumps({"ready": str(node.contact.address)}), flush=True)
        while line := await lines.readline():
            order = json.loads(line)
            if order["do"] == "card":  # read by our own kind alone, over a pipe
                told = {"card": pickle.dumps(node.contact).hex()}
            else:
                told = await reach(node, order)
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
