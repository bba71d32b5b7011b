"""A file that is locked is no other's, and can still be read."""

import contextlib
from pathlib import Path

import pytest

from p2pswarm.base.file_lock import lock_file


def test_a_file_is_locked_once_and_free_when_it_is_closed(tmp_path: Path):
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    with contextlib.ExitStack() as opened:
        first, second = (opened.enter_context(file.open("rb")) for _ in range(2))
        lock_file(first.fileno())

        with pytest.raises((BlockingIOError, PermissionError)):
            lock_file(second.fileno())
        assert first.read() == second.read() == b"abc"

        first.close()
        lock_file(second.fileno())
