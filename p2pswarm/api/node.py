"""A node of a swarm, for programs: it listens, it is in the DHT, and it calls its peers."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from p2pswarm.base.exception_group import cause_of
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.node.page import open_page
from p2pswarm.node.roles import role_module
from p2pswarm.node.run.invitation_text import joining
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.settings.node_config import NetworkConfig, NodeConfig
from p2pswarm.settings.page_config import OFF
from p2pswarm.settings.parser import from_values
from p2pswarm.web.health import NodeHealth

log = logging.getLogger(__name__)
logging.getLogger("p2pswarm").addHandler(logging.NullHandler())  # programs choose whether they log


class Node:
    """A node of a swarm: an identity, an address, the DHT, and calls to peers.

    Use it in an `async with`; it is in the swarm while that block lasts.

    Args:
        bootstrap: HOST:PORT of nodes that are in the swarm already. Empty: a swarm of one.
        identity: The file of this node's key; made if absent. None: a new key each time.
        listen: HOST:PORT; port 0 takes any free one. Empty: every address of this host, port 4000
            or any free one.
        network: The settings of `[network]` in a settings file: a mapping or a `NetworkConfig`.
        invite: The invitation of a run's owner: its text, or a file that has it. It says where to
            join, too, if `bootstrap` is empty.
        state: A folder where a trainer or a server keeps what it must know after a restart, this
            node's key too, if `identity` names none. Its trainer keeps the owner's key there, and
            invites.
        name: What people call this machine; empty: the name of the host.
        page: HOST:PORT of the page that a browser shows of this node and its run; port 0 takes any
            free one; empty: none. `page_link` opens it.

    Raises:
        ValueError: A setting is not allowed; the message names it and what is.
        p2pswarm.base.errors.Unusable: On entering: an address cannot be used, nobody answers, or
            the invitation is none.
    """

    def __init__(
        self,
        *,
        bootstrap: Sequence[str] = (),
        identity: str | Path | None = None,
        listen: str = "",
        network: NetworkConfig | Mapping[str, object] | None = None,
        invite: str | Path = "",
        state: str | Path | None = None,
        name: str = "",
        page: str = "",
    ) -> None:
        if isinstance(bootstrap, str):
            raise TypeError(f'bootstrap is a list of addresses: bootstrap=["{bootstrap}"]')
        values: dict[str, object] = {
            "bootstrap": list(bootstrap),
            "identity": str(identity) if identity else None,
            "listen": listen,
            "network": network or {},
            "invite": str(invite),
            "state": str(state) if state else None,
            "name": name,
            "page": {"listen": page or OFF},
        }
        self._config = from_values(NodeConfig, values)
        self._stack: NodeStack | None = None
        self._blocks = AsyncExitStack()

    async def __aenter__(self) -> Self:
        config = await asyncio.to_thread(joining, self._config)
        async with AsyncExitStack() as blocks:
            identity = blocks.enter_context(identity_from(config.key_file))
            health = NodeHealth(config.role, asyncio.get_running_loop().time())
            shown = await blocks.enter_async_context(open_page(config, health, log.warning))
            stack = await blocks.enter_async_context(open_stack(config, identity))
            self._stack = stack.with_page(shown, health)
            self._blocks = blocks.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack = None
        await leave(self._blocks, kind, error, trace)

    @property
    def stack(self) -> NodeStack:
        """The parts of the node; RuntimeError outside of its block."""
        if self._stack is None:
            raise RuntimeError("this node is not up: use it inside `async with Node(...) as node`")
        return self._stack

    @property
    def contact(self) -> Contact:
        """This node's peer id, and the address that others dial."""
        return self.stack.endpoint.contact

    @property
    def page_link(self) -> str:
        """What opens the page, its token included; empty: there is none, or its port is taken."""
        page = self.stack.page
        return "" if page is None else page.link

    @property
    def keeps_state(self) -> bool:
        """Return whether it has a folder of `state`."""
        return self._config.state is not None

    @property
    def dht(self) -> Dht:
        """The distributed hash table of the swarm: `put`, `get`, `closest`."""
        return self.stack.dht

    @property
    def rpc(self) -> Rpc:
        """Calls of typed messages: `call`, `open_stream`, `serve_unary`, `serve_stream`."""
        return self.stack.rpc

    def __repr__(self) -> str:
        return f"Node({self.contact.address})" if self._stack else "Node(not up)"


async def load_role(name: str) -> ModuleType:
    """The same, imported in a thread: links need the loop."""
    return await asyncio.to_thread(role_module, name)


async def leave(
    block: AbstractAsyncContextManager[Any, bool | None],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> None:
    """Leave a block that owns tasks; raises its error alone, not in a group."""
    try:
        await block.__aexit__(kind, error, trace)
    except BaseExceptionGroup as group:
        cause = cause_of(group)
        if cause is not error:  # the error of the block itself is raised by Python
            raise cause from None
