"""The identity file: made once, read by its owner alone, used by one node at a time."""

import os
import stat

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.net.crypto.key_file import identity_from


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys" / "identity"


def identity(path):
    with identity_from(path) as found:
        return found


def test_without_a_file_every_node_is_somebody_new():
    assert identity(None).peer_id != identity(None).peer_id


def test_an_absent_file_is_made_for_its_owner_alone_and_kept(path):
    first = identity(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert identity(path).peer_id == first.peer_id


def test_a_crash_while_it_is_made_leaves_no_empty_file(path, monkeypatch):
    """An empty key file would be refused at each later start."""

    def crash(_descriptor):
        raise OSError(5, "the machine is off")

    with monkeypatch.context() as dying:
        dying.setattr(os, "fsync", crash)
        with pytest.raises(Unusable, match="the machine is off"):
            identity(path)

    assert identity(path).peer_id == identity(path).peer_id


@pytest.mark.parametrize("mode", [0o604, 0o666, 0o601, 0o664])
def test_a_file_that_others_may_touch_is_refused_with_the_remedy(path, mode):
    identity(path)
    path.chmod(mode)

    with pytest.raises(Unusable, match=f"run chmod 600 {path}"):
        identity(path)


@pytest.mark.parametrize("size", [0, 31, 33, 5000])
def test_a_file_of_another_size_is_no_identity(path, size):
    path.parent.mkdir()
    path.touch(0o600)
    path.write_bytes(bytes(size))

    with pytest.raises(Unusable, match=f"has {size} bytes, an identity has 32"):
        identity(path)


def test_a_folder_is_no_identity(tmp_path):
    with pytest.raises(Unusable, match="identity file"):
        identity(tmp_path)


def test_a_place_where_no_file_can_be_made_is_named_with_the_remedy(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unusable, match="--identity, or a `state` folder that can be written"):
        identity(tmp_path / "file" / "identity.key")


def test_a_pipe_is_no_identity_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(Unusable, match="is not a file"):
        identity(tmp_path / "pipe")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unusable, match="File exists"):
        identity(tmp_path / "file" / "identity")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_that_we_may_not_read_is_named(path):
    identity(path)
    path.chmod(0)

    with pytest.raises(Unusable, match="Permission denied"):
        identity(path)


def test_two_nodes_cannot_share_an_identity(path):
    with identity_from(path), pytest.raises(Unusable, match="in use by another node"):
        identity(path)

    identity(path)
