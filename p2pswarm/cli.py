"""The command `p2pswarm`.

Ctrl-C is set up before anything large is imported. Until a node or the demo installs its own
handler, an interrupt ends the process at once, without a traceback. The version is answered without
the parser, which imports the flags of every command.
"""

import importlib
import signal
import sys
from collections.abc import Sequence

from p2pswarm.base.version import version_text

UNREAD, UNUSABLE = 141, 2  # as in `command_line`


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments == ["--version"]:
        return _write_version()
    code: int = importlib.import_module("p2pswarm.command_line").main(arguments)
    return code


def _write_version() -> int:
    """Write the version; returns the exit code."""
    try:
        print(version_text(), flush=True)  # noqa: T201  without stdout it writes nothing
    except OSError as error:
        sys.stdout = None  # what it could not write would fail again at the end
        if isinstance(error, BrokenPipeError):
            return UNREAD
        sys.stderr.write(f"error: the answer cannot be written: {error.strerror}\n")
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
