"""A node as a process: it joins a swarm, runs its role, and leaves when it is asked to.

The module of the role is imported by name, so a node that others join through never loads torch.
What a role's settings name is read and checked before the node is in a swarm, if it can be
wrong.
"""

import asyncio
import gc
import sys
import time
from types import ModuleType

from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run
from p2pswarm.node.notify_socket import NotifySocket, notify_socket
from p2pswarm.node.owner_requests import OwnerRequests
from p2pswarm.node.owner_socket import owner_socket
from p2pswarm.node.page import open_page
from p2pswarm.node.progress.banner import greeting, page_line
from p2pswarm.node.progress.output import both, dated, reminded
from p2pswarm.node.progress.output import write_line as say
from p2pswarm.node.roles import role_module
from p2pswarm.node.shutdown import Shutdown, unless
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.node.stack_traces import watch_stacks_signal
from p2pswarm.progress.printable import log_to_stderr
from p2pswarm.settings.config import EMULATED
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.web.health import NodeHealth

SWITCH_S = 0.0005  # with 5 ms, bulk beside a busy Python thread ran at 0.41 GB/s instead of 1
PLAIN_DEVICES = ("auto", "cpu", EMULATED)
"""Every torch has these, or nothing of torch computes."""


def main(config: NodeConfig, begun_s: float) -> int:
    """Run a node; returns the exit code."""
    sys.setswitchinterval(SWITCH_S)
    log_to_stderr(config.log_level, "%(asctime)s %(levelname).1s %(name)s: %(message)s")
    with identity_from(config.key_file) as identity:
        return run(_live(config, identity, begun_s))


def load_role(role: str) -> ModuleType:
    """Import the module of a role; what is there then stays for good.

    Python's search for garbage passes over it from now on. The event loop stands still during a
    full search: for 0.09 s (measured) among the 200,000 objects that come with torch.
    """
    module = role_module(role)
    gc.freeze()
    return module


def told_early(config: NodeConfig) -> bool:
    """Return whether a role's settings may be wrong in what only its module finds.

    Such a node loads its role, mostly torch, before it is in a swarm; any other one meanwhile.
    """
    serve = config.serve
    serves_specially = serve.device not in PLAIN_DEVICES or serve.pretrained is not None
    return config.role == "trainer" or (config.role == "stage" and serves_specially)


def _prepare(config: NodeConfig, identity: Identity) -> tuple[ModuleType, object]:
    """The module of the role, and what it makes of the settings without a network."""
    module = load_role(config.role)
    prepared: object = module.prepare(config, identity, say)
    return module, prepared


async def _live(config: NodeConfig, identity: Identity, begun_s: float) -> int:
    """Prepare the role, join, run it, leave."""
    manager = notify_socket()
    tell = both(say, manager.status)
    shutdown = Shutdown(asyncio.get_running_loop(), config, say)
    shutdown.watch_signals()
    watch_stacks_signal(config.state, say)
    if config.leave_at_eof:
        shutdown.watch_stdin()
    ready: tuple[ModuleType, object] | None = None
    clock = asyncio.get_running_loop().time
    health = NodeHealth(config.role, clock())
    owner = OwnerRequests(shutdown.drain, lambda: health.answer(clock()).to_json())
    async with (
        open_page(config, health, say) as page,
        # already while a text is read: a probe that hears nothing would end the node
        owner_socket(config, identity.peer_id.short, owner),
    ):
        if told_early(config):
            still = both(dated(say), manager.starting)
            async with reminded("reading what the settings name", still):
                ready = await unless(shutdown.asked, asyncio.to_thread(_prepare, config, identity))
            if ready is None:
                return shutdown.code
        async with (
            open_stack(config, identity) as node,
            asyncio.TaskGroup() as tasks,
        ):
            contact = node.endpoint.contact
            for line in greeting(config, contact, time.monotonic() - begun_s):
                say(line)
            manager.ready(f"{config.role} {contact}")
            watch = tasks.create_task(shutdown.watch_role())
            stopping = tasks.create_task(_tell_stopping(shutdown.asked, manager))
            if page is not None:
                say(page_line(config, contact, page.line))
            here = node.with_page(page, health, has_role=config.role != "bootstrap")
            node.reachability.tell(say if page is None else both(page.on_line, say))
            if ready is None:
                ready = await asyncio.to_thread(_prepare, config, identity)
            module, prepared = ready
            code: int | None = await module.run(here, prepared, shutdown.asked, dated(tell), owner)
            for task in (watch, stopping):
                task.cancel()
            manager.stopping()
    return shutdown.code if code is None else code


async def _tell_stopping(asked: asyncio.Event, manager: NotifySocket) -> None:
    await asked.wait()
    manager.stopping()
