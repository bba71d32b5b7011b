"""In the home of `router.py`: get a port forwarded, have the world dial it, return it, tell all."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time

from nat.router import ENV, OUTSIDE

from p2pswarm.nat.lease import Lease
from p2pswarm.nat.port_mapper import PortMapper
from p2pswarm.net.gateways import gateway, own_host

DIAL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2).close()"


def dialled(port: int) -> bool:
    """Whether a dial from the world to the router's port arrives somewhere."""
    inside = ["ip", "netns", "exec", "world", sys.executable, "-c", DIAL, OUTSIDE, str(port)]
    return subprocess.run(inside, capture_output=True, env=ENV, check=False).returncode == 0


def closed(port: int) -> bool:
    """Whether dials soon fail: the router may still have to read that the port is returned."""
    return any(not dialled(port) for _ in range(20))


async def main() -> None:
    own = own_host(socket.AF_INET)
    found: dict[str, object] = {"own": own, "gateway": own and gateway(own)}
    with socket.create_server(("0.0.0.0", 4000)):
        leases: list[Lease | None] = []
        came = asyncio.Event()

        def on_lease(lease: Lease | None) -> None:
            leases.append(lease)
            came.set()

        mapper = PortMapper(4000, os.urandom, on_lease)
        mapper.gateway(own and gateway(own), own)
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
            found["dialled"] = await asyncio.to_thread(dialled, lease.external.port)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if lease is not None:
            found["returned"] = await asyncio.to_thread(closed, lease.external.port)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
