"""Whether a simulated DHT is one: each node knows those of all nodes that are closest to it.

If that is so, every lookup ends at the right nodes, whoever begins it. It is found out by looking
into tables and asks nobody, so it changes nothing.

Units:   none.
"""

from collections.abc import Sequence

from p2pswarm.discovery.dht.node import Dht

CLOSEST = 8  # as many as hold a record


def whole_share(nodes: Sequence[Dht]) -> float:
    """The share of nodes whose tables have their `CLOSEST` neighbours of all `nodes`."""
    numbers = [int.from_bytes(_raw(node)) for node in nodes]
    whole = 0
    for node, own in zip(nodes, numbers, strict=True):
        closest = sorted(numbers, key=lambda each: each ^ own)[1 : CLOSEST + 1]
        known = {each.number for each in node.table.nearest(_raw(node), 2 * CLOSEST)}
        whole += known.issuperset(closest)
    return whole / len(nodes)


def _raw(node: Dht) -> bytes:
    assert node.contact.peer is not None, "a node knows its own id"
    return node.contact.peer.raw
