"""Emulated servers in one process, each a node with sockets of its own, for bench/page.py."""

import asyncio
import sys
from pathlib import Path

import torch

from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.node import serve
from p2pswarm.node.owner_requests import OwnerRequests
from p2pswarm.node.shutdown import LeaveRequest
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.settings.node_config import NodeConfig, ServeConfig


async def main(address: str, servers: int, forward_s: float) -> None:
    """Serve until stdin ends."""
    leaving = [LeaveRequest() for _ in range(servers)]
    asyncio.get_running_loop().run_in_executor(None, sys.stdin.read).add_done_callback(
        lambda _: [each.set() for each in leaving]
    )
    async with asyncio.TaskGroup() as tasks:
        for number, leave in enumerate(leaving):
            tasks.create_task(one(address, forward_s, leave, f"machine-{number}"))


def refused(line: str) -> None:
    """Say why a server does not serve; all else is not worth a line."""
    if "cannot" in line:
        print(line, file=sys.stderr)


async def one(address: str, forward_s: float, leave: LeaveRequest, name: str) -> None:
    """One node that serves."""
    config = NodeConfig(
        role="stage",
        listen="127.0.0.1:0",
        bootstrap=(address,),
        name=name,
        serve=ServeConfig(device="emulated", emulated_forward_s=forward_s),
    )
    with identity_from(None) as identity:
        async with open_stack(config, identity) as stack:
            owner = OwnerRequests(leave.set, str)
            await serve.run(stack, torch.device("cpu"), leave, refused, owner)


if __name__ == "__main__":
    assert Path(__file__).exists(), "started by bench/page.py"
    run_loop(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
