"""What a command prints: its answer on stdout, and on stderr what is said beside it.

Errors:  none.
"""

import sys


def say(line: str) -> None:
    """A line of the answer, at once: some answers take minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_beside(line: str) -> None:
    """A line for people, where the answer is for scripts."""
    sys.stderr.write(f"{line}\n")
