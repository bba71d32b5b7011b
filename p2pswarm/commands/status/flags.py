"""`p2pswarm status` and `p2pswarm explain`: how the runs of a swarm stand, and what limits them.

Errors:  Unusable if no node is named to ask through.
"""

import argparse
import os
from collections.abc import Sequence

from p2pswarm.base.errors import Unusable
from p2pswarm.commands.arguments import INVITE_HELP, Commands, add_bootstrap, add_json, run_main
from p2pswarm.node.run.invitation_text import joining
from p2pswarm.node.stack.addresses import check
from p2pswarm.settings.environment import from_environment
from p2pswarm.settings.node_config import NodeConfig

STATUS_TEXT = "Asks the trainers of a swarm how their runs stand: steps, servers, microbatches."
EXPLAIN_TEXT = (
    "Asks trainers what each stage can do, who has moved to another one, and why others stay."
)
ANY_PORT = ":0"


def add(commands: Commands) -> None:
    """Add both commands."""
    for name, about, text in (
        ("status", "how the runs of a swarm stand", STATUS_TEXT),
        ("explain", "which stage limits a run, and why servers move or stay", EXPLAIN_TEXT),
    ):
        parser = commands.add_parser(name, help=about, description=text)
        parser.set_defaults(main=_run)
        _add_asking(parser)


def _add_asking(parser: argparse.ArgumentParser) -> None:
    add_bootstrap(parser, "ask through this node of the swarm; may be given several times")
    parser.add_argument("--invite", metavar="TEXT", help=INVITE_HELP)
    parser.add_argument("--run", default="", metavar="NAME", help="default: every run")
    add_json(parser)


def _run(flags: argparse.Namespace) -> int:
    """Ask, and print what the trainers answer."""
    there = from_environment(os.environ)
    bootstrap = flags.bootstrap or there.get("bootstrap", ())
    config = asking_through(bootstrap, flags.invite or there.get("invite", ""))
    return run_main("commands.status.ask", flags.command, config, flags.run, json=flags.json)


def asking_through(bootstrap: Sequence[str], invite: str) -> NodeConfig:
    """The settings of who only asks, through nodes of a swarm; Unusable if there are none."""
    config = joining(NodeConfig(bootstrap=tuple(bootstrap), listen=ANY_PORT, invite=invite))
    if not config.bootstrap:
        raise Unusable("say through which node to ask: --bootstrap HOST:PORT, or --invite TEXT")
    check(config)
    return config
