"""`p2pswarm verify`: prove that a checkpoint is whole.

Errors:  Unusable if there is none.
"""

import argparse
import dataclasses
import importlib
import json

from p2pswarm.base.errors import SwarmError
from p2pswarm.commands.arguments import Commands, add_json, say, say_beside

FAILED = 1
TEXT = (
    "Reads every byte of a checkpoint, and compares it with what the run's trainer signed. A line "
    "for each stage says what is there."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "verify",
        help="prove that a checkpoint is whole",
        description=TEXT,
        epilog="Exit code: 0 if it is whole, 1 if it is not, 2 if there is none.",
    )
    parser.set_defaults(main=_run)
    parser.add_argument(
        "target",
        metavar="PATH",
        help="a checkpoint, or a folder or URL (s3://...) with checkpoints: then the newest",
    )
    add_json(parser, "print one JSON object, for scripts")


def _run(flags: argparse.Namespace) -> int:
    """Prove it; scripts get their JSON whatever is found."""
    verification = importlib.import_module("p2pswarm.checkpoint.verification")
    proof = importlib.import_module("p2pswarm.node.run.resume")
    try:
        found = verification.verify(
            flags.target, say_beside if flags.json else say, proof.check_records
        )
    except SwarmError:
        if flags.json:
            say(json.dumps(dataclasses.asdict(verification.NOTHING)))
        raise
    if flags.json:
        say(json.dumps(dataclasses.asdict(found)))
    return 0 if found.ok else FAILED
