"""`p2pswarm check-model`: whether a model that is cut into stages computes what the whole does."""

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import Commands, file_path

TEXT = (
    "Makes a small copy of the run's model and computes with it as a whole and in stages: forward, "
    "backward, a graph that is made again, and all of it twice. Says that both are identical, or "
    "which parameter differs first and what the reason may be. Nothing is started and nothing is "
    "fetched. A node does the same before it trains or serves a model that is not built in."
)


@dataclass(frozen=True, slots=True)
class CheckModelCommand:
    """Check the model of a settings file."""

    source: Path
    """A trainer's settings, in TOML."""
    times: bool = False
    """Measure the blocks, and say the best cut."""

    def run(self, begun_s: float) -> int:
        """Check with torch, which only this command and nodes load."""
        checking = importlib.import_module("p2pswarm.commands.weights.model_checks")
        code: int = checking.main(self.source, begun_s, times=self.times)
        return code


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "check-model", help="whether a model can be cut into stages", description=TEXT
    )
    parser.set_defaults(read=_read)
    parser.add_argument("source", type=file_path, metavar="FILE.toml", help="a trainer's settings")
    parser.add_argument(
        "--times",
        action="store_true",
        help="measure each block on this processor, one at a time, and say the best run.cut",
    )


def _read(flags: argparse.Namespace) -> CheckModelCommand:
    return CheckModelCommand(flags.source, flags.times)
