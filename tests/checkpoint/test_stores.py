"""One suite for every kind of target: a folder, and a file system of fsspec."""

import itertools
import os

import fsspec
import pytest
from checkpoint.harness import WRITER, FailingFile, full_after, names_in

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.targets import (
    BLOCK_BYTES,
    FsspecStore,
    LocalFolder,
    give_name,
    may_use,
    open_store,
)

NUMBERS = itertools.count()


@pytest.fixture(params=["folder", "memory", "local"])
def store(request, tmp_path):
    match request.param:
        case "folder":
            return LocalFolder(tmp_path / "target", WRITER)
        case "memory":
            return FsspecStore(f"memory://test-{next(NUMBERS)}/target")
        case _:  # fsspec's own way to this disk
            return FsspecStore(f"file://{tmp_path / 'target'}")


def put(store, path: str, data: bytes) -> None:
    file = store.create(path, len(data))
    file.write(data)
    file.commit()


def test_a_target_that_is_not_there_is_empty(store):
    assert store.entries() == {}
    assert store.entries("a") == {}


def test_a_file_is_there_when_it_is_committed(store):
    file = store.create("a/x", 6)
    file.write(b"abc")
    file.write(memoryview(b"def"))
    assert store.entries("a").get("x") is None

    file.commit()

    assert store.entries() == {"a": None}
    assert store.entries("a") == {"x": 6}
    assert store.read("a/x", 1, 3) == b"bcd"
    assert store.read("a/x", 4, 100) == b"ef"


def test_a_file_that_is_abandoned_was_never_there(store):
    file = store.create("a/x", 6)
    file.write(b"abc")

    file.abandon()

    assert "x" not in store.entries("a")
    put(store, "a/x", b"again")
    assert store.entries("a") == {"x": 5}


def test_a_large_file_goes_in_parts_and_can_be_broken_off(store):
    data = bytes(BLOCK_BYTES) + b"end"
    put(store, "a/x", data)
    broken = store.create("a/y", len(data))
    broken.write(data[:BLOCK_BYTES])

    broken.abandon()

    assert store.entries("a") == {"x": len(data)}
    assert store.read("a/x", BLOCK_BYTES, 10) == b"end"


def test_a_name_that_is_taken_is_never_taken_again(store):
    put(store, "a/x", b"first")

    with pytest.raises(FileExistsError):
        store.create("a/x", 5)

    assert store.read("a/x", 0, 9) == b"first"


def test_files_are_removed_and_the_folder_with_the_last(store):
    put(store, "a/x", b"1")
    put(store, "a/y", b"2")

    store.remove("a", ["x", "not there"])
    assert store.entries("a") == {"y": 1}
    store.remove("a", ["y"])
    store.remove("a", ["y"])

    assert store.entries() == {}


def test_what_is_not_there_is_an_error_of_the_system(store):
    with pytest.raises(OSError):  # noqa: PT011 - each file system has its own words
        store.read("a/x", 0, 1)


# A folder


def test_two_who_begin_the_same_file_cannot_both_finish_it(tmp_path):
    first = LocalFolder(tmp_path, "aaaaaaaa").create("a/x", 1)
    second = LocalFolder(tmp_path, "bbbbbbbb").create("a/x", 1)
    first.write(b"1")
    second.write(b"2")

    second.commit()

    with pytest.raises(FileExistsError):
        first.commit()
    first.abandon()
    assert (tmp_path / "a" / "x").read_bytes() == b"2"
    assert names_in(tmp_path) == ["a/x"]


def test_a_part_has_another_name_until_it_is_whole(tmp_path):
    file = LocalFolder(tmp_path, WRITER).create("a/x", 1)
    file.write(b"1")

    assert names_in(tmp_path) == [f"a/x.{WRITER}.part"]
    file.abandon()


def test_a_folder_that_vanished_is_an_error_and_nothing_else(tmp_path):
    file = LocalFolder(tmp_path / "t", WRITER).create("a/x", 1)
    file.write(b"1")
    (tmp_path / "t" / "a" / f"x.{WRITER}.part").unlink()
    (tmp_path / "t" / "a").rmdir()

    with pytest.raises(FileNotFoundError):
        file.commit()
    file.abandon()

    assert names_in(tmp_path) == []


def test_a_full_disk_is_named_by_the_system(tmp_path):
    file = full_after(tmp_path, 3).create("a/x", 6)

    with pytest.raises(OSError, match="No space left"):
        file.write(b"abcdef")
    file.abandon()

    assert names_in(tmp_path) == []


def test_a_disk_that_cannot_sync_gives_no_name(tmp_path):
    folder = LocalFolder(tmp_path, WRITER, lambda path: FailingFile(path, 10, at_flush=True))
    file = folder.create("a/x", 1)
    file.write(b"1")

    with pytest.raises(OSError, match="Input/output"):
        file.commit()

    assert names_in(tmp_path) == [f"a/x.{WRITER}.part"]
    file.abandon()
    assert names_in(tmp_path) == []


def test_a_folder_with_something_of_the_users_stays(tmp_path):
    folder = LocalFolder(tmp_path, WRITER)
    put(folder, "a/x", b"1")
    (tmp_path / "a" / "notes.txt").write_text("mine")

    folder.remove("a", ["x"])

    assert names_in(tmp_path) == ["a/notes.txt"]


def test_a_pipe_is_no_file_and_is_never_opened(tmp_path):
    """Reading one would wait for ever."""
    os.mkfifo(tmp_path / "manifest.json")

    assert LocalFolder(tmp_path, WRITER).entries() == {}


def test_a_part_that_is_another_name_of_a_finished_file_does_not_cost_it(tmp_path):
    """A process died between giving a file its name and removing the temporary one."""
    folder = LocalFolder(tmp_path, WRITER)
    put(folder, "a/x", b"finished")
    (tmp_path / "a" / f"x.{WRITER}.part").hardlink_to(tmp_path / "a" / "x")
    (tmp_path / "a" / "x").rename(tmp_path / "kept")

    put(folder, "a/x", b"new")

    assert (tmp_path / "kept").read_bytes() == b"finished"


def no_links(_source, _target) -> None:
    raise PermissionError(1, "no links here")


def test_a_file_system_without_links_gives_names_all_the_same(tmp_path):
    (tmp_path / "part").write_bytes(b"1")
    give_name(tmp_path / "part", tmp_path / "x", link=no_links)
    (tmp_path / "part").write_bytes(b"2")

    with pytest.raises(FileExistsError):
        give_name(tmp_path / "part", tmp_path / "x", link=no_links)

    assert (tmp_path / "x").read_bytes() == b"1"


def test_the_free_space_of_a_folder_that_is_not_there_yet_is_its_disks(tmp_path):
    assert LocalFolder(tmp_path / "a" / "b", WRITER).free_bytes() > 0
    assert FsspecStore("memory://x").free_bytes() is None


# Names of targets


def test_a_path_is_a_folder_and_a_url_is_fsspecs(tmp_path):
    assert isinstance(open_store(str(tmp_path)), LocalFolder)
    assert isinstance(open_store(f"file://{tmp_path}"), LocalFolder)
    assert isinstance(open_store("memory://x"), FsspecStore)
    assert open_store(f"file://{tmp_path}").place == str(tmp_path)


def test_a_url_that_nobody_knows_is_named_with_its_remedy():
    with pytest.raises(Unusable, match=r"nosuch://x: fsspec cannot use this: .*name another"):
        open_store("nosuch://x")


def test_an_error_of_a_foreign_library_is_an_error_of_the_system():
    class ForeignError(Exception):
        pass

    class Failing(fsspec.AbstractFileSystem):
        protocol = "failing"

        def ls(self, path, detail=True, **_):
            raise ForeignError("two\nlines")

    fsspec.register_implementation("failing", Failing, clobber=True)

    with pytest.raises(OSError, match="two lines"):
        FsspecStore("failing://x").entries()


@pytest.mark.parametrize(
    ("target", "may"),
    [
        ("here/saved", True),
        ("here/saved/deeper", True),
        ("./here/saved", True),
        ("here/saved/../saved", True),
        ("here", False),
        ("here/savedtoo", False),
        ("here/saved/../../etc", False),
        ("here/saved/out", False),
        ("file://{root}/here/saved/x", True),
        ("local:///etc", False),
        ("s3://bucket/runs", True),
        ("s3://bucket/runs/mine", True),
        ("s3://bucket/runs2", False),
        ("s3://bucket/runs/../other", False),
        ("s3://bucket/runs/..", False),
        ("s3://bucket/runs/%2e%2e/other", False),
        ("s3://bucket/runs?versionId=1", False),
        ("s3://bucket", False),
        ("gs://bucket/runs", False),
        ("simplecache::s3://bucket/runs", False),
        ("s3://bucket/runs::file:///etc", False),
        ("http://inner/x", False),
        ("memory://runs", False),
    ],
)
def test_a_target_is_allowed_where_it_really_lies_in_one_of_the_owners(
    tmp_path, monkeypatch, target, may
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here" / "saved").mkdir(parents=True)
    (tmp_path / "here" / "saved" / "out").symlink_to("/etc")

    allowed = ("here/saved", "s3://bucket/runs/")

    assert may_use(target.format(root=tmp_path), allowed) is may
    assert not may_use(target.format(root=tmp_path), ())


def test_a_url_that_the_owner_names_word_by_word_is_allowed():
    assert may_use("simplecache::s3://bucket", ("simplecache::s3://bucket",))
    assert not may_use("s3://anything", ("s3://",))
    assert not may_use("/etc", ("s3://bucket",))
