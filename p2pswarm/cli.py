"""The command `p2pswarm`.

Ctrl-C is set up before anything large is imported. Until a node or the demo installs its own
handler, an interrupt ends the process at once, without a traceback.
"""

import importlib
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if argv is None else list(argv)
    code: int = importlib.import_module("p2pswarm.command_line").main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
