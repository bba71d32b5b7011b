"""The parts of a node where the system allows a process few open files: it serves fewer peers."""

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from p2pswarm.base.errors import BadHandshake
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet

FILES = 100
FILES_OF_A_NODE = 280
PATIENCE_S = 20.0
STRANGERS = 2 * FILES
BEGIN = f"""
import asyncio, os, resource, sys
from functools import partial
files = int(os.environ.get("FILES", "{FILES}"))
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
from p2pswarm.settings.node_config import (NodeConfig)
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.node.stack.stack import open_stack, within_files
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.endpoint.endpoint import Endpoint

async def main():
"""
ENDPOINT = """
    config = {config}(TransportConfig(handshake_s=600.0))
    async with Endpoint(Identity.generate(), SocketNet(), config, os.urandom) as end:
        at = await end.listen(Address("127.0.0.1", 0))
        print(at.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
STACK = """
    config = NodeConfig(role="bootstrap", listen="127.0.0.1:0")
    async with open_stack(config, Identity.generate()) as node:
        print(node.endpoint._config.links_max)

asyncio.run(main())
"""


@asynccontextmanager
async def endpoint(config: str) -> AsyncIterator[Contact]:
    """An endpoint in a process that may open FILES files; `config`: what fits its settings."""
    program = BEGIN + ENDPOINT.format(config=config)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    assert process.stdout is not None
    port = int(await asyncio.wait_for(process.stdout.readline(), PATIENCE_S))
    try:
        yield Contact(None, Address("127.0.0.1", port))
        _, said = await asyncio.wait_for(process.communicate(b""), PATIENCE_S)
        assert b"Traceback" not in said
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def silent_strangers(at: Address) -> AsyncIterator[None]:
    """STRANGERS connections that say nothing."""
    there = [await asyncio.open_connection(at.host, at.port) for _ in range(STRANGERS)]
    try:
        yield
    finally:
        for _, writer in there:
            writer.close()


async def dial(to: Contact, handshake_s: float = PATIENCE_S) -> None:
    config = TransportConfig(handshake_s=handshake_s)
    async with Endpoint(Identity.generate(), SocketNet(), config, os.urandom) as dialler:
        await dialler.link(to)


async def test_silent_strangers_do_not_take_the_last_file_of_a_node():
    async with (
        endpoint("partial(within_files, passing=True)") as contact,
        silent_strangers(contact.address),
    ):
        await dial(contact)


async def test_a_node_whose_files_run_out_accepts_again_when_others_close():
    """Limits that do not fit, as in a program that has opened its own files meanwhile."""
    async with endpoint("") as contact:
        async with silent_strangers(contact.address):
            with pytest.raises(BadHandshake, match="stalled"):
                await dial(contact, handshake_s=0.5)
        await dial(contact)


def node_with(files: int, program: str = STACK) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"FILES": str(files)},
    )


def test_a_node_that_may_open_few_files_says_so_and_serves_fewer_peers():
    run = node_with(FILES_OF_A_NODE)

    assert 1 <= int(run.stdout) < FILES_OF_A_NODE
    assert "`ulimit -n" in run.stderr
    assert len(run.stderr.splitlines()) == 1


def test_a_node_that_may_open_too_few_files_is_refused_and_one_that_only_asks_is_not():
    refused = node_with(64)
    asks = node_with(
        64, STACK.replace("Identity.generate())", "Identity.generate(), passing=True)")
    )

    assert "Unusable: this process may open 64 files" in refused.stderr
    assert refused.stdout == ""
    assert int(asks.stdout) >= 1
    assert asks.stderr == ""
