"""A node's identity on disk: 32 secret bytes that only their owner may read.

Two nodes with one identity would displace each other in every routing table, so the
file stays locked while a node uses it.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.file_lock import lock_file
from p2pswarm.base.files import create_durably, read_small
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.file_readers import open_to_others
from p2pswarm.net.crypto.identity import KEY_BYTES, Identity

if sys.platform == "win32":
    READ = os.O_RDONLY | os.O_BINARY  # else some bytes of a key would be taken for ends of lines
else:
    READ = os.O_RDONLY | os.O_NONBLOCK  # opening a pipe would wait for its writer


@contextlib.contextmanager
def identity_from(path: Path | None) -> Iterator[Identity]:
    """The identity in the file `path`, made if missing; without a path one for the block alone."""
    if path is None:
        yield Identity.from_bytes(os.urandom(KEY_BYTES))
        return
    try:
        descriptor = _open(path)
    except OSError as error:
        raise Unusable(
            f"identity file {path} cannot be used: {error.strerror}: name another with --identity, "
            "or a `state` folder that can be written"
        ) from error
    try:
        yield Identity.from_bytes(_checked_key(descriptor, path))
    finally:
        os.close(descriptor)


def peer_of(path: Path) -> PeerId:
    """The peer of an identity file, also while its node runs."""
    key = read_small(path, KEY_BYTES, "it is no identity")
    try:
        return Identity.from_bytes(key).peer_id
    except ValueError as error:
        raise Unusable(f"identity file {path}: {error}: name another file") from error


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):  # another node was faster
            create_durably(path, os.urandom(KEY_BYTES))
    return os.open(path, READ)


def _checked_key(descriptor: int, path: Path) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise Unusable(f"identity file {path} is not a file: name another with --identity")
    if open_to_others(status):
        raise Unusable(f"identity file {path} is open to other users: run chmod 600 {path}")
    if status.st_size != KEY_BYTES:
        raise Unusable(
            f"identity file {path} has {status.st_size} bytes, an identity has {KEY_BYTES}: "
            "name another with --identity, or move it away to get a new one"
        )
    try:
        lock_file(descriptor)
    except OSError as error:
        raise Unusable(
            f"identity file {path} is in use by another node: give each node its own"
        ) from error
    return os.read(descriptor, KEY_BYTES)
