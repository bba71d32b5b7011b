"""In the home of `router.py`: the router's daemon is started again; tell when the port is back."""

import asyncio
import json
import os
import signal
import socket
import time

from reach.nat.mapping_probe import dialled
from reach.nat.router import FORGOTTEN

from p2pswarm.net.os.local_network import gateway, own_host
from p2pswarm.reach.nat.port_mapping_io import PortMapper

UP_S = 5.0  # a clock of whole seconds has to have gone on before a new beginning shows in it
PATIENCE_S = 30.0
LOOK_AGAIN_S = 0.01


async def main() -> None:
    own = own_host(socket.AF_INET)
    found: dict[str, object] = {}
    with socket.create_server(("0.0.0.0", 4000)):
        came = asyncio.Event()
        mapper = PortMapper(4000, os.urandom, lambda _lease: came.set())
        mapper.on_gateway(own and gateway(own), own)
        task = asyncio.create_task(mapper.run())
        async with asyncio.timeout(PATIENCE_S):
            await came.wait()
            assert mapper.machine.lease is not None
            port = mapper.machine.lease.external.port
            found["before"] = await asyncio.to_thread(dialled, port)
            await asyncio.sleep(UP_S)
            os.kill(os.getppid(), signal.SIGUSR1)
            while not FORGOTTEN.exists():  # noqa: ASYNC110  another process makes it
                await asyncio.sleep(LOOK_AGAIN_S)
            begun_s = time.monotonic()
            while not await asyncio.to_thread(dialled, port):
                pass
        found["seconds"] = time.monotonic() - begun_s
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
