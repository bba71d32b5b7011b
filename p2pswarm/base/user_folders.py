"""Folders of the user who runs a node (XDG Base Directory Specification)."""

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder for what can be made again; RuntimeError for a user who has no home."""
    name = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    base = os.environ.get(name)
    return (Path(base) if base else Path.home() / ".cache") / "p2pswarm"


def running_folder() -> Path | None:
    """The folder for what ends with a process; None where the user has no folder at all."""
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "p2pswarm"
    try:
        return cache_folder() / "nodes"
    except RuntimeError:
        return None
