"""In the home of `router.py`: get a port forwarded, have the world dial it, return it, tell all.

Argument: 6, to be let in by IPv6.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time

from reach.nat.router import ENV, OUTSIDE

from p2pswarm.net.os.local_network import gateway, own_host
from p2pswarm.reach.nat.mapping_search import Lease
from p2pswarm.reach.nat.port_mapping_io import PortMapper

DIAL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()"


def dialled(port: int, host: str = OUTSIDE) -> bool:
    """Whether a dial from the world to the router's port arrives somewhere."""
    inside = ["ip", "netns", "exec", "world", sys.executable, "-c", DIAL, host, str(port)]
    return subprocess.run(inside, capture_output=True, env=ENV, check=False).returncode == 0


def closed(port: int, host: str = OUTSIDE) -> bool:
    """Whether dials soon fail: the router may still have to read that the port is returned."""
    return any(not dialled(port, host) for _ in range(20))


async def main() -> None:
    family = socket.AF_INET6 if sys.argv[1:] == ["6"] else socket.AF_INET
    own = own_host(family)
    found: dict[str, object] = {"own": own, "gateway": own and gateway(own)}
    everywhere = "::" if family == socket.AF_INET6 else "0.0.0.0"
    with socket.create_server((everywhere, 4000), family=family):
        leases: list[Lease | None] = []
        came = asyncio.Event()

        def on_lease(lease: Lease | None) -> None:
            leases.append(lease)
            came.set()

        mapper = PortMapper(4000, os.urandom, on_lease)
        mapper.on_gateway(own and gateway(own), own)
        begun_s = time.monotonic()
        task = asyncio.create_task(mapper.run())
        try:
            async with asyncio.timeout(3.0):
                await came.wait()
        except TimeoutError:
            found["refusals"] = mapper.machine.refusals
        lease = leases[0] if leases else None
        if lease is not None:
            found["seconds"] = time.monotonic() - begun_s
            found["protocol"] = lease.protocol.value
            found["external"] = str(lease.external)
            found["lifetime_s"] = lease.lifetime_s
            place = lease.external.port, lease.external.host
            found["dialled"] = await asyncio.to_thread(dialled, *place)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if lease is not None:
            found["returned"] = await asyncio.to_thread(closed, *place)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
