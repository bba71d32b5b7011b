"""The way by which a node's owner reaches it: a port of the loopback interface, and a key to it.

The key is in a file that only its owner can read, in the folder of `state`, and in the user's
folder of running nodes. Signals would not do: Windows has none that a program could handle, and a
number does not say which node it is. A local stranger who finds the port has no key.
"""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.files import read_small, write_durably
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.base.user_folders import running_folder
from p2pswarm.node.owner_requests import OwnerRequest, OwnerRequests
from p2pswarm.progress.printable import printable
from p2pswarm.settings.node_config import NodeConfig

HERE = "127.0.0.1"
ENDING = ".node.json"
KEY_BYTES = 32
LINE_BYTES_MAX = 4_096  # a request has a key and a word; an answer has a line of text
REQUEST_S = 5.0  # for who has connected to ask; a process on this machine needs milliseconds
ASKING_MAX = 8  # at once: an owner has one or two terminals
ANSWER_S = 3_700.0  # leaving takes `serve.grace_s`, an hour at most

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunningNode:
    """A node that runs for this user; what its file says."""

    port: int
    key: str
    peer: str
    role: str
    host: str
    """The machine that it runs on."""
    process: int

    @property
    def here(self) -> bool:
        """True if it runs on this machine: folders may be shared."""
        return self.host == socket.gethostname()

    @property
    def text(self) -> str:
        """Its name for people."""
        return f"{self.role} {self.peer}, process {self.process}"


@contextlib.asynccontextmanager
async def owner_socket(
    config: NodeConfig, peer: str, requests: OwnerRequests
) -> AsyncIterator[None]:
    """Take the owner's requests while this block lasts. A node serves without it, too."""
    key, asking = secrets.token_hex(KEY_BYTES), asyncio.Semaphore(ASKING_MAX)
    tasks = OwnedTasks()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            if asking.locked():
                return
            async with asking:
                await _answer(reader, writer, key, requests)

    try:
        server = await asyncio.start_server(
            lambda reader, writer: tasks.spawn(attend(reader, writer)),
            HERE,
            0,
            limit=LINE_BYTES_MAX,
        )
    except OSError as error:
        log.info("its owner cannot reach this node: %s", error)
        yield
        return
    port = server.sockets[0].getsockname()[1]
    node = RunningNode(port, key, peer, config.role, socket.gethostname(), os.getpid())
    files = await asyncio.to_thread(_write, node, config.state)
    try:
        yield
    finally:
        server.close()
        await tasks.close()
        for file in files:
            with contextlib.suppress(OSError):
                file.unlink()


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, requests: OwnerRequests
) -> None:
    """Answer one request of who has the key. Whoever has none is gone, or mad, hears nothing."""
    try:
        async with asyncio.timeout(REQUEST_S):
            line = await reader.readline()
        asked = json.loads(line)
        request = OwnerRequest(asked["request"])
        known = hmac.compare_digest(asked["key"].encode(), key.encode())
    except (OSError, TimeoutError, ValueError, LookupError, TypeError, AttributeError):
        return
    except RecursionError:  # json's, for a thousand brackets
        return
    if not known:
        return
    try:
        answer = {"text": await requests.carry_out(request)}
    except SwarmError as error:
        answer = {"error": str(error)}
    with contextlib.suppress(OSError):  # the terminal was closed meanwhile
        writer.write(json.dumps(answer).encode() + b"\n")
        await writer.drain()


def _write(node: RunningNode, state: Path | None) -> list[Path]:
    """Write the node's files, as far as it has places for them."""
    files = []
    for place in (running_folder(), state):
        if place is None:
            continue
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_ended(place)
            file = place / f"{node.process}-{node.peer}{ENDING}"
            write_durably(file, json.dumps(asdict(node)).encode())
        except OSError as error:
            log.info("its owner finds this node in no %s: %s", place, error)
        else:
            files.append(file)
    return files


def running_nodes(folder: Path) -> list[RunningNode]:
    """The nodes that a folder names, of this machine and of others that share the folder."""
    found = []
    for file in sorted(folder.glob(f"*{ENDING}")):
        with contextlib.suppress(OSError, ValueError, TypeError, SwarmError):
            values = json.loads(read_small(file, LINE_BYTES_MAX, "start the node again"))
            found.append(RunningNode(**values))
    return found


def is_there(node: RunningNode) -> bool:
    """Return whether a node still listens to its owner, as far as this machine can tell."""
    if not node.here:
        return True
    try:
        socket.create_connection((HERE, node.port), REQUEST_S).close()
    except OSError:
        return False
    return True


def _forget_ended(folder: Path) -> None:
    """Remove what nodes that were killed have left."""
    if sys.platform != "win32":  # it has no way to ask whether a process lives that does not end it
        for node in running_nodes(folder):
            if node.here and not _lives(node):
                (folder / f"{node.process}-{node.peer}{ENDING}").unlink(missing_ok=True)


def _lives(node: RunningNode) -> bool:
    """Return whether the process of a node of this machine lives."""
    if node.process == os.getpid():  # the first process of a container has the same number again
        return is_there(node)
    try:
        os.kill(node.process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def ask_node(node: RunningNode, request: OwnerRequest, answer_s: float = ANSWER_S) -> str:
    """Ask a node of one's own; returns its words. Unusable if it is not there, or cannot."""
    if not node.here:
        raise Unusable(f"{node.text} runs on {printable(node.host)}: give the command there")
    asked = json.dumps({"key": node.key, "request": request.value}).encode() + b"\n"
    gone = Unusable(f"{node.text} is not there any more: start it again")
    try:
        async with asyncio.timeout(REQUEST_S):
            reader, writer = await asyncio.open_connection(HERE, node.port, limit=LINE_BYTES_MAX)
    except (OSError, TimeoutError):
        raise gone from None
    try:
        writer.write(asked)
        async with asyncio.timeout(answer_s):
            line = await reader.readline()
        answer = json.loads(line) if line else {}
    except TimeoutError:
        raise Unusable(f"{node.text} does not answer within {answer_s:.0f} s") from None
    except (OSError, ValueError):
        raise gone from None
    finally:
        writer.close()
    if "error" in answer:
        raise Unusable(str(answer["error"]))
    if "text" not in answer:
        raise gone
    return str(answer["text"])
