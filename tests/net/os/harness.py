"""Two raw connections on loopback that are each other's ends."""

import asyncio
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketNet

HERE = Address("127.0.0.1", 0)


PATIENCE_S = 20.0


@asynccontextmanager
async def connected():
    """Two raw streams that are each other's ends."""
    net = SocketNet()
    listener = await net.listen(HERE)
    ours, theirs = await asyncio.gather(net.dial(listener.address), listener.accept())
    try:
        yield ours, theirs
    finally:
        for stream in (ours, theirs):
            stream.close()
        listener.close()


def certificate_in(folder: Path) -> Path:
    """A file with a certificate of 127.0.0.1 that nobody vouches for, and its key."""
    pem, key, chain = (folder / name for name in ("both.pem", "key.pem", "chain.pem"))
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(chain)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    pem.write_bytes(chain.read_bytes() + key.read_bytes())
    return pem
