"""Text of peers as people may see it: nothing in it moves a cursor or begins a line.

Everything that is shown goes through here last, since any error may quote a peer.
"""

import logging
from typing import TextIO, cast

from p2pswarm.base.standard_streams import STDERR


def printable(text: str) -> str:
    """A text without control characters, each of which becomes a question mark."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else "?" for character in text)


class PrintableFormatter(logging.Formatter):
    """Formats a record of the log in one printable line; a traceback, which is ours, follows."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """See `logging.Formatter`."""
        return printable(super().formatMessage(record))


def log_to_stderr(level: str, form: str = logging.BASIC_FORMAT) -> None:
    """Log from `level` on to stderr, if nobody has set up logging already."""
    handler = logging.StreamHandler(cast(TextIO, STDERR))
    handler.setFormatter(PrintableFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def nameless(_peer: object) -> str:
    """Nobody knows what a machine is called."""
    return ""
