"""The command `p2pswarm`.

Signals are set up before anything large is imported. Until a node or the demo installs its own
handlers, an interrupt ends the process at once, without a traceback, and so does SIGTERM. The
version is answered without the parser, which imports the flags of every command.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from p2pswarm.base.exit_codes import DONE, UNREAD, UNUSABLE, code_of
from p2pswarm.base.version import version_text

LONG_RUNNING = ("node", "train", "demo")
"""Commands that launchers start. All others end as the kernel has it, even in a solver's loop."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    lasts = arguments[:1] and arguments[0] in LONG_RUNNING
    signal.signal(signal.SIGINT, end_at_once if lasts else signal.SIG_DFL)
    if lasts and signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, end_at_once)
    if arguments == ["--version"]:
        return _write_version()
    code: int = importlib.import_module("p2pswarm.command_line").main(arguments)
    return code


def end_at_once(number: int, _frame: FrameType | None) -> None:
    """End the process: a handler for signals while nothing has begun.

    The kernel's own way will not do: it passes over SIGTERM for the first process of a container.
    """
    os._exit(code_of(number))


def _write_version() -> int:
    """Write the version; returns the exit code."""
    try:
        print(version_text(), flush=True)  # noqa: T201  without stdout it writes nothing
    except OSError as error:
        sys.stdout = None  # what it could not write would fail again at the end
        if isinstance(error, BrokenPipeError):
            return UNREAD
        streams = importlib.import_module("p2pswarm.base.standard_streams")
        streams.STDERR.write(f"error: the answer cannot be written: {error.strerror}\n")
        return UNUSABLE
    return DONE


if __name__ == "__main__":
    sys.exit(main())
