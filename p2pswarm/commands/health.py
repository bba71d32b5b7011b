"""`p2pswarm health`: whether a node of this machine does its work, for health checks of containers.

It asks the node's page. Exit code 0: it does; 1: it does not, or nobody answers.

Errors:  Unusable for an address that is none.
"""

import argparse
import http.client
import json
from dataclasses import dataclass

from p2pswarm.base.errors import one_line
from p2pswarm.base.ids import Address
from p2pswarm.commands.arguments import Commands, add_json, file_path, say
from p2pswarm.progress.printable import printable
from p2pswarm.settings.page_config import AUTO, OFF, PAGE_PORT
from p2pswarm.settings.parser import load

TEXT = (
    "Asks the page of a node on this machine whether the node is ready: a server serves, a trainer "
    "leads or stands by, any other is in the swarm. The exit code is 0 or 1."
)
ANSWER_S = 5.0  # a busy loop answers late; ten times as long as any of ours stands still
ANSWER_BYTES_MAX = 4_096
OK = 200
HERE = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What a node's page has said."""

    ok: bool
    why: str


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("health", help="whether a node does its work", description=TEXT)
    parser.set_defaults(main=_run)
    parser.add_argument(
        "page",
        nargs="?",
        type=_address,
        metavar="HOST:PORT",
        help=f"of its page; default: page.listen of --config, or 127.0.0.1:{PAGE_PORT}",
    )
    parser.add_argument("--config", type=file_path, metavar="FILE", help="the node's settings")
    parser.add_argument("--live", action="store_true", help="ask only whether its event loop turns")
    add_json(parser, 'one line of JSON: {"ok": true, "why": "serves"}')


def _address(text: str) -> Address:
    try:
        return Address.parse(text if not text.startswith(":") else f"127.0.0.1{text}")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run(flags: argparse.Namespace) -> int:
    answer = asked(_page_of(flags), "/livez" if flags.live else "/readyz")
    if flags.json:
        say(json.dumps({"ok": answer.ok, "why": answer.why}, separators=(",", ":")))
    else:
        say(f"{'ready' if answer.ok else 'not ready'}: {answer.why}")
    return 0 if answer.ok else 1


def _page_of(flags: argparse.Namespace) -> Address:
    """The address of the page, by the flags."""
    named: Address | None = flags.page
    if named is not None:
        return named
    usual = Address(HERE, PAGE_PORT)
    if flags.config is None:
        return usual
    page = load(flags.config).page
    if page.listen in (AUTO, OFF):
        return usual
    at = page.address
    return Address(HERE, at.port) if at.host in EVERYWHERE else at


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
