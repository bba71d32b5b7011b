"""In the home of `router.py`: the machine's address changes; tell when that was noticed."""

import asyncio
import json
import socket
import subprocess

from p2pswarm.net.os.interface_changes import watched
from p2pswarm.net.os.local_network import own_host


async def main() -> None:
    changed = asyncio.Event()
    before = own_host(socket.AF_INET)
    with watched(changed.set) as told:
        for command in (
            "ip addr add 192.168.77.6/24 dev eth0",
            "ip addr del 192.168.77.5/24 dev eth0",
            "ip addr add 192.168.77.6/24 dev eth0",
            "ip route add default via 192.168.77.1",
        ):
            await asyncio.to_thread(subprocess.run, command.split(), check=False)
        async with asyncio.timeout(5.0):
            await changed.wait()
    after = own_host(socket.AF_INET)
    print(json.dumps({"told": told, "before": before, "after": after}))


asyncio.run(main())
