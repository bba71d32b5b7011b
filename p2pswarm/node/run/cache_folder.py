"""Where a trainer keeps what can be made again from the user's own files."""

import os
from pathlib import Path


def default_cache() -> Path:
    """The user's folder for it (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "p2pswarm"
