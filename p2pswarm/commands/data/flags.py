"""`p2pswarm data`: which files a run reads, what is held out, and what its rows become.

Errors:  Unusable for settings, text or a tokenizer that cannot be used.
"""

import argparse
import importlib
import os
import sys

from p2pswarm.commands.arguments import Commands, add_json, add_set, file_path, say, whole

SHOWN_MAX = 1_000
TEXT = (
    "Reads the text of a trainer's settings as its run would. Says which files are read, what is "
    "passed over and why, how much is held out, and shows the first rows that are trained on as "
    "tokens and as text."
)


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "data", help="what a run's text becomes: files, tokens, rows", description=TEXT
    )
    parser.set_defaults(main=_run)
    parser.add_argument(
        "settings", type=file_path, metavar="FILE.toml", help="a trainer's settings"
    )
    parser.add_argument(
        "--show", type=whole(0, SHOWN_MAX), default=3, metavar="N", help="rows to show; default 3"
    )
    add_set(parser)
    add_json(parser, "print one JSON object, for scripts")


def _run(flags: argparse.Namespace) -> int:
    """Read the text with numpy and torch, which only some commands load."""
    report = importlib.import_module("p2pswarm.commands.data.text_report")
    found = report.text_report(flags.settings, flags.show, flags.changes)
    colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")  # https://no-color.org
    say(report.as_json(found) if flags.json else report.as_text(found, colours=colours))
    return 0
