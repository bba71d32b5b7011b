"""`p2pswarm health`: whether a node of this machine does its work, for health checks of containers.

It asks the node as `p2pswarm pause` does, or its page. Exit code 0: it does; 1: it does not, or
nobody answers.
"""

import argparse
import asyncio
import http.client
import importlib
import json
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.base.errors import SwarmError, one_line
from p2pswarm.base.ids import Address
from p2pswarm.commands.arguments import Commands, add_json, file_path, say
from p2pswarm.commands.own_node import WHICH, only_node
from p2pswarm.progress.printable import printable

TEXT = (
    "Asks a node on this machine whether it is ready: a server serves, a trainer leads or stands "
    "by, any other is in the swarm. The exit code is 0 or 1."
)
ANSWER_S = 5.0  # a busy loop answers late; ten times as long as any of ours stands still
ANSWER_BYTES_MAX = 4_096
OK = 200
HERE = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a node has said."""

    ok: bool
    why: str


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("health", help="whether a node does its work", description=TEXT)
    parser.set_defaults(main=_run)
    parser.add_argument(
        "node", nargs="?", type=_named, metavar="NODE", help=f"HOST:PORT of its page, or {WHICH}"
    )
    parser.add_argument("--live", action="store_true", help="ask only whether its event loop turns")
    add_json(parser, 'one line of JSON: {"ok": true, "why": "serves"}')


def _named(text: str) -> Address | Path:
    """The address of a page, or a file or a folder that is there."""
    try:
        return Address.parse(text if not text.startswith(":") else f"{HERE}{text}")
    except ValueError as error:
        named = file_path(text)
        if not named.exists():
            raise argparse.ArgumentTypeError(f"no such file or folder, and {error}") from None
        return named


def _run(flags: argparse.Namespace) -> int:
    named: Address | Path | None = flags.node
    if isinstance(named, Address):
        answer = asked(named, "/livez" if flags.live else "/readyz")
    else:
        answer = of_own_node(named, live=flags.live)
    if flags.json:
        say(json.dumps({"ok": answer.ok, "why": answer.why}, separators=(",", ":")))
    else:
        say(f"{'ready' if answer.ok else 'not ready'}: {answer.why}")
    return 0 if answer.ok else 1


def of_own_node(named: Path | None, *, live: bool) -> ProbeAnswer:
    """Ask a node of one's own; that it is not there is an answer, too."""
    module = importlib.import_module("p2pswarm.node.owner_socket")
    requests = importlib.import_module("p2pswarm.node.owner_requests")
    try:
        node = only_node(module, named)
        answer = asyncio.run(module.ask_node(node, requests.OwnerRequest.HEALTH, ANSWER_S))
    except SwarmError as error:
        return ProbeAnswer(ok=False, why=str(error))
    try:
        found = json.loads(answer)
        ok, why = found["ok"] is True, str(found["why"])
    except (ValueError, LookupError, TypeError):
        return ProbeAnswer(ok=False, why=f"{node.text} answers something else")
    return ProbeAnswer(ok=live or ok, why="the loop turns" if live else why)


def asked(page: Address, path: str) -> ProbeAnswer:
    """Ask a page; what is wrong with the answer is an answer, too."""
    connection = http.client.HTTPConnection(page.host, page.port, timeout=ANSWER_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        found = json.loads(answer.read(ANSWER_BYTES_MAX))
        return ProbeAnswer(
            answer.status == OK and found["ok"] is True, printable(str(found["why"]))
        )
    except (OSError, http.client.HTTPException) as error:
        return ProbeAnswer(ok=False, why=printable(f"{page} does not answer: {one_line(error)}"))
    except (ValueError, KeyError, TypeError):
        return ProbeAnswer(ok=False, why=f"{page} is no page of a node")
    finally:
        connection.close()
