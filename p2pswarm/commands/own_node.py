"""`p2pswarm pause`, `resume` and `drain`: a node of one's own, on this machine.

Errors:  Unusable where no such node runs, or several do and none is named.
"""

import argparse
import asyncio
import importlib
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import Commands, file_path, say
from p2pswarm.settings.parser import load

WHICH = (
    "the node's settings file or its folder of `state`; left out: the one node that you run on "
    "this machine"
)
COMMANDS = {
    "pause": (
        "take your machine back for a while",
        "The server leaves its run, and rests until p2pswarm resume; then the command ends.",
    ),
    "resume": ("give your machine again", "The server that was paused looks for a run again."),
    "drain": (
        "end a node in order",
        "The node leaves its run in order and ends with 0: nobody need start it again.",
    ),
}


def add(commands: Commands) -> None:
    """Add the three commands."""
    for name, (text, description) in COMMANDS.items():
        parser = commands.add_parser(name, help=text, description=description)
        parser.set_defaults(main=_run)
        parser.add_argument("node", nargs="?", type=file_path, metavar="NODE", help=WHICH)


def _run(flags: argparse.Namespace) -> int:
    """Ask the node, and print what it answers."""
    module = importlib.import_module("p2pswarm.node.owner_socket")
    requests = importlib.import_module("p2pswarm.node.owner_requests")
    node = only_node(module, flags.node)
    say(asyncio.run(module.ask_node(node, requests.OwnerRequest(flags.command))))
    return 0


def only_node(module: Any, named: Path | None) -> Any:
    """The node of one's own that is meant, by `node/owner_socket.py`, which is `module`."""
    folder, peer = (module.running_folder(), "") if named is None else _place(module, named)
    everywhere = [] if folder is None else module.running_nodes(folder)
    everywhere = [node for node in everywhere if peer in ("", node.peer)]
    found = [node for node in everywhere if node.here] or everywhere
    if len(found) > 1:  # some may have been killed
        found = [node for node in found if module.is_there(node)]
    if len(found) == 1:
        return found[0]
    if not found:
        where = "you run no node on this machine" if named is None else f"no node runs with {named}"
        raise Unusable(f"{where}: start one, or name its settings file or its folder of `state`")
    texts = "; ".join(node.text for node in found)
    raise Unusable(
        f"{len(found)} nodes run: {texts}; name the settings file of one, or its folder of `state`"
    )


def _place(module: Any, named: Path) -> tuple[Path | None, str]:
    """Where the node's file lies, and the node's short id where others' files may lie, too."""
    if named.is_dir():
        return named, ""
    config = load(named)
    if config.state is not None:
        return config.state, ""
    if config.identity is None:
        raise Unusable(
            f"{named} names no `state` and no `identity`: leave it out, or set one of them and "
            "start the node"
        )
    keys = importlib.import_module("p2pswarm.net.crypto.key_file")
    return module.running_folder(), keys.peer_of(config.identity).short
