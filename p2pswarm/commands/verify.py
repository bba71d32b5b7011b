"""`p2pswarm verify`: prove that a checkpoint is whole.

Errors:  Unusable if there is none.
"""

import argparse
import dataclasses
import importlib
import json
from dataclasses import dataclass

from p2pswarm.base.errors import SwarmError
from p2pswarm.commands.arguments import Commands, add_json, say, say_beside

FAILED = 1
TEXT = (
    "Reads every byte of a checkpoint, and compares it with what the run's trainer signed. A line "
    "for each stage says what is there."
)


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """Prove that a checkpoint is whole."""

    target: str
    """A checkpoint, or a folder or URL that holds some."""
    json: bool
    """Print one JSON object instead of lines."""

    def run(self, begun_s: float) -> int:
        """Prove it; scripts get their JSON whatever is found."""
        del begun_s
        verification = importlib.import_module("p2pswarm.checkpoint.verification")
        proof = importlib.import_module("p2pswarm.node.run.resume")
        tell = say_beside if self.json else say
        try:
            found = verification.verify(self.target, tell, proof.check_records)
        except SwarmError:
            if self.json:
                say(json.dumps(dataclasses.asdict(verification.NOTHING)))
            raise
        if self.json:
            say(json.dumps(dataclasses.asdict(found)))
        return 0 if found.ok else FAILED


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "verify",
        help="prove that a checkpoint is whole",
        description=TEXT,
        epilog="Exit code: 0 if it is whole, 1 if it is not, 2 if there is none.",
    )
    parser.set_defaults(read=_read)
    parser.add_argument(
        "target",
        metavar="PATH",
        help="a checkpoint, or a folder or URL (s3://...) with checkpoints: then the newest",
    )
    add_json(parser, "print one JSON object, for scripts")


def _read(flags: argparse.Namespace) -> VerifyCommand:
    return VerifyCommand(flags.target, flags.json)
