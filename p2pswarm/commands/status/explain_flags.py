"""`p2pswarm explain`: which stage limits a run, and why servers move or stay.

Errors:  Unusable if no node is named to ask through.
"""

import argparse
import importlib
from dataclasses import dataclass

from p2pswarm.commands.arguments import Commands
from p2pswarm.commands.status.flags import add_asking, asking
from p2pswarm.settings.config import NodeConfig

TEXT = "Asks trainers what each stage can do, who has moved to another one, and why others stay."


@dataclass(frozen=True, slots=True)
class ExplainCommand:
    """Ask the trainers of a swarm why servers move or stay."""

    config: NodeConfig
    name: str
    """Of a run; empty: all."""
    json: bool

    def run(self, begun_s: float) -> int:
        """Ask, and print what they answer."""
        del begun_s
        explain = importlib.import_module("p2pswarm.commands.status.explain")
        code: int = explain.main(self.config, self.name, json=self.json)
        return code


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain",
        help="which stage limits a run, and why servers move or stay",
        description=TEXT,
    )
    parser.set_defaults(read=_read)
    add_asking(parser)


def _read(flags: argparse.Namespace) -> ExplainCommand:
    return ExplainCommand(asking(flags), flags.run, flags.json)
