"""What an owner keeps on disk."""

import stat

import pytest
from run.access.harness import NOW_S, OWNER, RUN, bearer

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address
from p2pswarm.commands.owner.invitations import owners_run
from p2pswarm.node.run.closed_run import owned_by_us
from p2pswarm.node.run.owner_folder import OwnerFolder
from p2pswarm.node.run.run_folder import RunFolder, SavedRun
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig


@pytest.fixture
def folder(tmp_path):
    return OwnerFolder(tmp_path)


def test_the_key_is_made_once_and_for_its_owner_alone(folder):
    with pytest.raises(Unusable, match="--closed"), folder.key():
        pass
    with folder.key(make=True) as made:
        key = made.public_key
    with folder.key() as again:
        assert again.public_key == key

    assert stat.S_IMODE((folder.path / "owner.key").stat().st_mode) == 0o600


def test_two_commands_at_once_do_not_mix(folder):
    with folder.key(make=True), pytest.raises(Unusable, match="in use"), folder.key():
        pass


def test_a_key_that_others_can_read_is_refused(folder):
    with folder.key(make=True):
        pass
    (folder.path / "owner.key").chmod(0o644)

    with pytest.raises(Unusable, match="chmod 600"), folder.key():
        pass


def test_invitations_and_lists_are_kept(folder):
    book = folder.book(RUN)
    book.add("anna", bearer().grant)
    book.revoke("anna")

    access = folder.next_list(OWNER, RUN, book, NOW_S)

    assert folder.book(RUN) == book
    assert folder.access(RUN) == access
    assert folder.book(b"o" * 16).entries == []


def test_an_older_list_never_replaces_a_newer_one(folder):
    book = folder.book(RUN)
    old = folder.next_list(OWNER, RUN, book, NOW_S)
    new = folder.next_list(OWNER, RUN, book, NOW_S + 60)

    folder.write_list(old)

    assert folder.access(RUN) == new


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "{"])
def test_a_damaged_file_is_named_with_the_remedy(folder, text):
    (folder.path / f"{RUN.hex()}.invitations").write_text(text)
    (folder.path / f"{RUN.hex()}.access").write_text(text)

    with pytest.raises(Unusable, match="restore it from a copy"):
        folder.book(RUN)
    with pytest.raises(Unusable, match="is damaged"):
        folder.access(RUN)


def test_the_trainers_address_is_for_invitations(folder):
    assert folder.trainer_address() is None
    folder.write_address(Address("203.0.113.7", 4000))
    assert folder.trainer_address() == Address("203.0.113.7", 4000)
    (folder.path / "trainer.address").write_text("nonsense")
    assert folder.trainer_address() is None


def test_a_trainer_closes_its_run_with_the_key_of_its_folder(tmp_path):
    config = NodeConfig(state=tmp_path, train=TrainConfig(closed=True))

    closed = owned_by_us(config)

    assert len(closed.run.owner) == 64
    assert owned_by_us(config).run.owner == closed.run.owner
    assert closed.run.closed
    assert owned_by_us(NodeConfig()).run == RunConfig()
    with pytest.raises(Unusable, match="set `state`"):
        owned_by_us(NodeConfig(train=TrainConfig(closed=True)))


def test_a_trainer_with_a_folder_can_invite_to_its_open_run(tmp_path):
    owned = owned_by_us(NodeConfig(state=tmp_path)).run

    assert len(owned.owner) == 64
    assert owned == RunConfig(owner=owned.owner)
    assert owned_by_us(NodeConfig(state=tmp_path)).run == owned


def test_who_has_no_closed_run_invites_to_none(tmp_path):
    with pytest.raises(Unusable, match="no run yet"):
        owners_run(NodeConfig(state=tmp_path))


def test_who_stands_by_or_goes_on_has_the_owner_of_that_run(tmp_path):
    standby = NodeConfig(state=tmp_path, train=TrainConfig(closed=True, standby=True))
    assert owned_by_us(standby).run.owner == ""
    assert not (tmp_path / "owner.key").exists()

    run = RunConfig(owner=OWNER.public_key.hex(), strangers="nothing")
    identity = RunIdentity(run, bytes(32), bytes(16), b"f" * 32)
    RunFolder(tmp_path).write(SavedRun(identity, finished=False))
    assert owned_by_us(NodeConfig(state=tmp_path, train=TrainConfig(closed=True))).run == run
    assert owned_by_us(NodeConfig(state=tmp_path)).run == run  # it stays closed
    assert not (tmp_path / "owner.key").exists()
    anew = NodeConfig(state=tmp_path, train=TrainConfig(closed=True, new=True))
    assert owned_by_us(anew).run.owner not in ("", run.owner)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"version": Infinity, "entries": [], "peers": []}',
        '{"version": 1, "entries": [ENTRY, "not_after": "later"}], "peers": []}',
        '{"version": 1, "entries": [ENTRY, "not_after": 9, "name": ["a"]}], "peers": []}',
        '{"version": 1, "entries": [ENTRY, "not_after": 9, "serial": "ab"}], "peers": []}',
    ],
)
def test_invitations_that_something_else_wrote_are_refused_with_the_remedy(folder, text):
    entry = '{"serial": "abababababababab", "name": "a", "role": "serve", "uses": 0, "not_before":1'
    (folder.path / f"{RUN.hex()}.invitations").write_text(text.replace("[ENTRY", f"[{entry}"))

    with pytest.raises(Unusable, match="restore it from a copy"):
        folder.book(RUN)
