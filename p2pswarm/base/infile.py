"""Reading a small file that a user names: its size has a limit, and errors say what to do.

Units:   bytes.
Errors:  Unusable, one line with the path and the reason.
"""

from pathlib import Path

from p2pswarm.base.errors import Unusable


def read_small(path: Path, bytes_max: int, instead: str) -> bytes:
    """All bytes of a file; `instead` tells what a larger one cannot be: "it is no trace"."""
    try:
        if path.stat().st_size > bytes_max:
            raise Unusable(f"{path} is larger than {bytes_max:,} bytes: {instead}")
        return path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path} cannot be read: {error.strerror}; name another file") from error
