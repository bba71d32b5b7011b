"""Where a server's voter keeps its promises: in its folder, or nowhere but in its process."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.serve import voter_records
from p2pswarm.run.chain.memory_file import RECORDS_KEPT
from p2pswarm.run.chain.messages import Prepare
from p2pswarm.run.manifest import NONCE_BYTES, RunIdentity
from p2pswarm.settings.config import RunConfig

IDENTITY = RunIdentity(RunConfig(name="a run"), bytes(32), bytes(NONCE_BYTES), b"f" * 32)


def test_a_server_without_a_folder_is_another_voter_each_time():
    first, again = (voter_records(None, IDENTITY, print) for _ in range(2))

    assert first.store.memory != again.store.memory
    assert first.restored.register.promised == 0
    assert first.restored.learner.chain.genesis.run == IDENTITY.run
    assert RECORDS_KEPT > 0


def test_a_server_with_a_folder_is_the_same_voter_with_its_promises(tmp_path):
    file = voter_records(tmp_path / "state", IDENTITY, print).store
    file.append(Prepare(IDENTITY.run, 7, bytes(16)))
    file.close()

    again = voter_records(tmp_path / "state", IDENTITY, print)
    again.store.close()

    assert again.store.memory == file.memory
    assert again.restored.register.promised == 7


def test_the_user_is_told_of_a_torn_end(tmp_path):
    said: list[str] = []
    file = voter_records(tmp_path, IDENTITY, said.append).store
    file.close()
    (path,) = tmp_path.glob("*.chain")
    with path.open("ab") as torn:
        torn.write(b"half")

    file = voter_records(tmp_path, IDENTITY, said.append).store
    file.close()

    assert len(said) == 1
    assert "cut off 4 bytes" in said[0]


def test_two_servers_cannot_share_a_folder(tmp_path):
    file = voter_records(tmp_path, IDENTITY, print).store

    with pytest.raises(Unusable, match="in use by another node"):
        voter_records(tmp_path, IDENTITY, print)

    file.close()


def test_a_folder_that_cannot_be_made_is_told_of_with_a_remedy(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(Unusable, match="name another"):
        voter_records(tmp_path / "file" / "state", IDENTITY, print)
