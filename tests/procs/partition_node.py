"""A node that takes part in a run's directory, and prints what it sees each time that it changes.

    python partition_node.py LISTEN [BOOTSTRAP]

A line is `members TABLE`: how many members it sees in the run, and how many nodes are in its table.
"""

import asyncio
import sys

from p2pswarm.api.node import Node
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.gossip.messages import RUN_ID_BYTES, RunRole
from p2pswarm.discovery.gossip.record import Activity, RoleKind
from p2pswarm.node.run.run_members import run_directory

RUN = b"r" * RUN_ID_BYTES
SERVES = RunRole(RoleKind.SERVER, Activity.WORKING, 0)
LOOK_S = 0.5


async def main(listen: str, *bootstrap: str) -> None:
    async with (
        Node(bootstrap=bootstrap, listen=listen) as node,
        run_directory(node.stack, node.rpc, RUN) as directory,
    ):
        directory.set_role(SERVES)
        said = ""
        while True:
            if not directory.contacts(RoleKind.SERVER):
                entries: list[Contact] = [each.contact for each in node.dht.table]
                directory.enter_through(entries)
            seen = f"{len(directory.present())} {len(node.dht.table)}"
            if seen != said:
                said = seen
                print(seen, flush=True)
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
