"""The operating system's limit on a process's open files, raised as far as it may be.

Many systems start a process with 1,024, for programs that use `select`, and let it ask for more.

Units:   open files.
Errors:  none: where the limit cannot be raised, it stays.
Source:  setrlimit(2), RLIMIT_NOFILE.
"""

import contextlib

try:
    import resource
except ImportError:  # Windows: no such limit on sockets
    resource = None  # type: ignore[assignment]


def raise_file_limit(wanted: int) -> int:
    """Let this process have `wanted` files open, if allowed; returns how many it may have."""
    if not resource:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < goal:
        with contextlib.suppress(OSError, ValueError):  # macOS has one more limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
            soft = goal
    return wanted if soft == resource.RLIM_INFINITY else soft
