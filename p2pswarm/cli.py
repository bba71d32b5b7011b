"""The command `p2pswarm`, from its first moment.

Nothing large is imported before Ctrl-C is settled: until something is at work that must end in
order, an interrupt simply ends the process, without a traceback.

Errors:  as `commands.py`.
"""

import importlib
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    arguments = sys.argv[1:] if argv is None else list(argv)
    code: int = importlib.import_module("p2pswarm.commands").main(arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
