"""`p2pswarm status`: how the runs of a swarm stand.

Errors:  Unusable if no node is named to ask through.
"""

import argparse
import importlib
from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import INVITE_HELP, Commands, add_bootstrap, add_json
from p2pswarm.node.run.invitation_text import joining
from p2pswarm.node.stack.addresses import check
from p2pswarm.settings.config import NodeConfig

TEXT = "Asks the trainers of a swarm how their runs stand: steps, servers, microbatches."
ANY_PORT = ":0"


@dataclass(frozen=True, slots=True)
class StatusCommand:
    """Ask the trainers of a swarm how their runs stand."""

    config: NodeConfig
    name: str
    """Of a run; empty: all."""
    json: bool

    def run(self, begun_s: float) -> int:
        """Ask, and print what they answer."""
        del begun_s
        status = importlib.import_module("p2pswarm.commands.status.status")
        code: int = status.main(self.config, self.name, json=self.json)
        return code


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("status", help="how the runs of a swarm stand", description=TEXT)
    parser.set_defaults(read=_read)
    add_asking(parser)


def add_asking(parser: argparse.ArgumentParser) -> None:
    """Add the flags of who asks about runs."""
    add_bootstrap(parser, "ask through this node of the swarm; may be given several times")
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
    parser.add_argument("--run", default="", metavar="NAME", help="default: every run")
    add_json(parser)


def asking(flags: argparse.Namespace) -> NodeConfig:
    """The settings of who only asks, through `--bootstrap` or `--invite`."""
    return asking_through(flags.bootstrap or (), flags.invite or "")


def asking_through(bootstrap: Sequence[str], invite: str) -> NodeConfig:
    """The settings of who only asks, through nodes of a swarm; Unusable if there are none."""
    config = joining(NodeConfig(bootstrap=tuple(bootstrap), listen=ANY_PORT, invite=invite))
    if not config.bootstrap:
        raise Unusable("say through which node to ask: --bootstrap HOST:PORT, or --invite TEXT")
    check(config)
    return config


def _read(flags: argparse.Namespace) -> StatusCommand:
    return StatusCommand(asking(flags), flags.run, flags.json)
