"""The store that a user's words name: a folder, or a URL.

Errors:  Unusable for a URL that fsspec cannot use.
"""

from pathlib import Path

from p2pswarm.checkpoint.folder import LocalFolder
from p2pswarm.checkpoint.fsspec_store import FsspecStore
from p2pswarm.checkpoint.store import CheckpointStore

READER = "readonly"
"""Stands for the writer's name where nothing is written."""
LOCAL_SCHEMES = ("file://", "local://")


def open_store(target: str, writer: str = READER) -> CheckpointStore:
    """The store at `target`; `writer` is the short form of our peer id."""
    for scheme in LOCAL_SCHEMES:
        if target.startswith(scheme):
            return LocalFolder(Path(target.removeprefix(scheme)), writer)
    if "://" in target or "::" in target:
        return FsspecStore(target)
    return LocalFolder(Path(target).expanduser(), writer)
