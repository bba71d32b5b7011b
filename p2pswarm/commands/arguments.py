"""Parts of several commands: flags, the text of a flag, and the lines that they print.

Errors:  SystemExit with one line for flags that cannot be read, as argparse does.
"""

import argparse
import errno
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeAlias

from p2pswarm.base.errors import SwarmError, Unusable
from p2pswarm.base.standard_streams import STDERR, with_letters_of
from p2pswarm.settings.limits import LONG_NAME, names_fit

USAGE_CODE = 2
SEED_MAX = 2**32 - 1
INVITE_HELP = "the invitation of a run's owner: the line of p2pswarm invite, or a file that has it"
DAY_S = 86_400
TIME_UNITS = {"m": 60, "h": 3_600, "d": DAY_S, "w": 7 * DAY_S}
LASTS_MAX_S = 3_650 * DAY_S


def run_main(module: str, *arguments: object, **options: object) -> int:
    """Call `main` of a module that only the command that runs needs; returns the exit code."""
    code: int = importlib.import_module(f"p2pswarm.{module}").main(*arguments, **options)
    return code


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with one line on stderr, as all commands do."""
        STDERR.write(f"error: {message}; see --help\n")
        sys.exit(USAGE_CODE)


Commands: TypeAlias = "argparse._SubParsersAction[OneLineParser]"  # noqa: SLF001
"""The place where commands are added."""


def add_bootstrap(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the nodes of a swarm through which it is joined or asked."""
    parser.add_argument("--bootstrap", action="append", metavar="HOST:PORT", help=text)


def add_json(parser: argparse.ArgumentParser, text: str = "one line of JSON, for scripts") -> None:
    """Add the answer for scripts."""
    parser.add_argument("--json", action="store_true", help=text)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add settings in the place of those of the file."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="KEY=VALUE",
        help="in the place of what the file says, such as run.steps=4000; repeatable",
    )


def add_package(parser: argparse.ArgumentParser) -> None:
    """Add whose code may be run: a file of weights may name any function, as strangers do."""
    text = "a package whose code you trust, if the model is of one; repeatable"
    parser.add_argument("--package", action="append", default=[], metavar="NAME", help=text)


def whole(low: int, high: int) -> Callable[[str], int]:
    """Read a whole number from low to high; argparse reports the error in one line."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return number

    return read


def file_path(text: str) -> Path:
    """A path that a file system could have; argparse reports the error in one line."""
    if not names_fit(text):
        raise argparse.ArgumentTypeError(f"a path has {LONG_NAME}")
    return Path(text)


def duration(text: str) -> int:
    """A time such as 12h or 7d, in seconds; argparse reports the error in one line."""
    number, unit = text[:-1], TIME_UNITS.get(text[-1:], 0)
    lasts_s = int(number) * unit if number.isascii() and number.isdigit() else 0
    if not 0 < lasts_s <= LASTS_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time such as 12h, 7d or 4w, of ten years at most"
        )
    return lasts_s


NO_READER = (errno.EPIPE, errno.EINVAL) if sys.platform == "win32" else (errno.EPIPE,)
"""What a write to a pipe fails with whose reader has ended; Windows has no error of its own."""


class NobodyReads(SwarmError):
    """Who read the answer has ended, as `head` does when it has enough."""


def write(text: str) -> None:
    """Write a part of the answer, at once: some answers take minutes.

    Raises NobodyReads, and Unusable where the output takes no more, as on a full disk.
    """
    if sys.stdout is None:  # closed before we began, as by >&-
        raise Unusable("the answer cannot be written: stdout is closed")
    try:
        sys.stdout.write(with_letters_of(sys.stdout, text))
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # what is left in memory would fail again at the end
        os.close(nowhere)
        if error.errno in NO_READER:
            raise NobodyReads("nobody reads the answer") from error
        raise Unusable(f"the answer cannot be written: {error.strerror}") from error


def say(line: str) -> None:
    """Write a line of the answer."""
    write(f"{line}\n")


def say_beside(line: str) -> None:
    """Write a line for people to stderr, where the answer is for scripts."""
    STDERR.write(f"{line}\n")


def toml(**values: object) -> str:
    """TOML of plain values: JSON writes texts, numbers and lists alike. None is left out."""
    return "".join(f"{key} = {json.dumps(x)}\n" for key, x in values.items() if x is not None)
