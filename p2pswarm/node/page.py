"""The page of this node: where it listens, who may open it, and what it says of the machine.

A page is never worth a node: where its port is taken, a line says so, and the node goes on.
"""

import asyncio
import contextlib
import importlib
import logging
import secrets
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import read_small, write_durably
from p2pswarm.base.ids import Address
from p2pswarm.node.stack.node_page import LOOPBACK, NodePage
from p2pswarm.node.stack.stack import Say
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.page_config import AUTO, OFF, PAGE_PORT, PageConfig
from p2pswarm.web.gate import TOKEN_BYTES, TOKEN_CHARS_MAX, PageGate
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.run_page import RunPage

TOKEN_FILE = "page.token"  # noqa: S105 - a name
PROCESS_BYTES = 8  # no other process has the same
PORTS_TRIED = 20  # so many nodes of one machine are at the usual ports

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_page(
    config: NodeConfig, health: NodeHealth, say: Say
) -> AsyncIterator[NodePage | None]:
    """Serve the page of a node while this block lasts; None where it has none."""
    in_terminal = sys.stdout is not None and not sys.stdout.closed and sys.stdout.isatty()
    places = places_of(config.page, config.role, in_terminal=in_terminal)
    if not places:
        yield None
        return
    page = RunPage(health, time.time, secrets.token_hex(PROCESS_BYTES))
    token = await asyncio.to_thread(token_of, config.state)
    try:
        async with served(page, places, token, config.page.names) as address:
            yield NodePage(page, config, address, token, time.time())
    except NoPlace as error:
        say(f"{error}; the node goes on without a page")
        yield None


class NoPlace(Unusable):
    """No address of the settings can be listened at."""


@contextlib.asynccontextmanager
async def served(
    page: RunPage, places: Sequence[Address], token: str, names: Sequence[str] = ()
) -> AsyncIterator[Address]:
    """Serve a page at the first of `places` that is free, while this block lasts; gives where.

    Raises NoPlace if none is.
    """
    module = await asyncio.to_thread(importlib.import_module, "p2pswarm.web.page_server")
    listener, reason = None, ""
    for place in places:
        try:
            listener = module.listening(place.host, place.port)
            break
        except OSError as error:
            reason = error.strerror or str(error)
    if listener is None:
        raise NoPlace(
            f"page.listen: {places[0]}: {reason}: name another HOST:PORT, or leave page.listen out"
        )

    def gate(port: int) -> PageGate:
        return PageGate(token, port, names)

    async with module.PageServer(page, gate, listener) as server:
        yield server.address


def places_of(page: PageConfig, role: str, *, in_terminal: bool) -> list[Address]:
    """Where a page may listen, the best place first; none: there is no page.

    Where a person watches, there is one: at a trainer, and at a node in a terminal. A launcher's
    nodes have none unless it is asked for.
    """
    if page.listen == OFF or (page.listen == AUTO and role != "trainer" and not in_terminal):
        return []
    if page.listen == AUTO:
        usual = range(PAGE_PORT, PAGE_PORT + PORTS_TRIED)
        return [Address(LOOPBACK, port) for port in (*usual, 0)]
    return [page.address]


def token_of(state: Path | None) -> str:
    """The token of a page: kept in the folder of `state`, so that a link stays good."""
    if state is None:
        return secrets.token_urlsafe(TOKEN_BYTES)
    file = state / TOKEN_FILE
    try:
        if file.exists():
            kept = read_small(file, TOKEN_CHARS_MAX, "it is no token").decode("ascii").strip()
            if len(kept) >= TOKEN_BYTES:
                return kept
        token = secrets.token_urlsafe(TOKEN_BYTES)
        state.mkdir(parents=True, exist_ok=True)
        write_durably(file, f"{token}\n".encode())
    except (OSError, Unusable, UnicodeDecodeError) as error:
        log.warning("%s: %s; the page's link is another one each time", file, error)
        return secrets.token_urlsafe(TOKEN_BYTES)
    return token
