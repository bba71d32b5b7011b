"""The store that a user's words name: a folder, or a URL.

Errors:  Unusable for a URL that fsspec cannot use, a user that does not exist, and a target that
         cannot be written.
"""

from pathlib import Path

from p2pswarm.base.errors import Unusable
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
    try:
        return LocalFolder(Path(target).expanduser(), writer)
    except RuntimeError as error:
        raise Unusable(f"{target}: there is no such user: name another target") from error


def require_writable(store: CheckpointStore, writer: str) -> None:
    """Raise Unusable unless a small file can be written to the target, and removed. Blocks."""
    folder, name = f"trial.{writer}", "trial"
    try:
        store.remove(folder, [name])  # of a process that died here
        file = store.create(f"{folder}/{name}", 1)
        file.write(b"0")
        file.commit()
        store.remove(folder, [name])
    except OSError as error:
        raise Unusable(
            f"checkpoint.target: {store.place} cannot be written: {error.strerror or error}: name "
            "another target, or mend it"
        ) from error
