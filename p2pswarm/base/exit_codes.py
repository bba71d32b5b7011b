"""The exit codes of a process, by which launchers decide whether to start it again.

A node that was asked to end says so, even if it handed everything over: with 0 a launcher would
book its work as done. docs/start_and_stop.md has what each launcher makes of them.
"""

import signal

DONE = 0
"""Nothing is left to do: the run is over, or the owner drained the node."""
FAILED = 1
"""The run has failed, or the program has."""
UNUSABLE = 2
"""The user can correct it; to start again without that is useless."""
OF_SIGNALS = 128
"""Added to the number of the signal that ended a process, as shells do."""
INTERRUPTED = OF_SIGNALS + 2
"""SIGINT: a person pressed Ctrl-C."""
UNREAD = OF_SIGNALS + 13
"""SIGPIPE: nobody reads the answer."""
TERMINATED = OF_SIGNALS + 15
"""SIGTERM, or another request of a program: the machine is taken, the work goes on elsewhere."""


BREAK = getattr(signal, "SIGBREAK", None)
"""What a program sends another one of its console on Windows, where SIGTERM ends it unheard."""


def code_of(number: int) -> int:
    """The exit code of a process that a signal asks to end."""
    return TERMINATED if number == BREAK else OF_SIGNALS + number
