"""Files that are tried before long work and written after it, whatever became of their place."""

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest

from p2pswarm.base import files
from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import (
    POINTERS,
    check_target,
    create_durably,
    patiently,
    read_small,
    refuse_pipe,
    refuse_pointer,
    require_file,
    sync_files,
    sync_folder,
    write_answer,
    write_durably,
    write_target,
    write_text,
)

HUGE_BYTES = 1 << 60


def write(place) -> None:
    place.write_bytes(b"result")


def full_disk(place) -> None:
    """Begins, and finds no space."""
    place.write_bytes(b"res")
    with Path("/dev/full").open("wb") as device:
        device.write(b"ult")


def test_a_good_place_is_left_as_it_was(tmp_path):
    (tmp_path / "kept.json").write_text("before")

    check_target(tmp_path / "kept.json")
    check_target(tmp_path / "new" / "folder" / "x.json")

    assert (tmp_path / "kept.json").read_text() == "before"
    assert list((tmp_path / "new" / "folder").iterdir()) == []


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("folder", "it is a folder"),
        ("file/x", "cannot be written"),
        ("file/x/y", "cannot be written"),
        ("/proc/x", "cannot be written"),
        ("/dev/null", "a device"),
        ("pipe", "a pipe"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_at_the_start(tmp_path, place, why, make_pipe):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    make_pipe(tmp_path / "pipe")

    with pytest.raises(Unusable, match=why) as caught:
        check_target(tmp_path / place)

    assert str(tmp_path / place) in str(caught.value)
    assert "name another file" in str(caught.value)


@pytest.fixture
def make_pipe():
    return os.mkfifo


def test_too_little_space_is_named_at_the_start(tmp_path):
    with pytest.raises(Unusable, match=r"takes 1,152,921,504,606,846,976 bytes, and .* are free"):
        check_target(tmp_path / "x", HUGE_BYTES)


def test_a_file_is_written_whole_in_the_place_of_the_old_one(tmp_path):
    (tmp_path / "x").write_text("before")

    written = write_target(tmp_path / "x", write, replace=True)

    assert (tmp_path / "x").read_bytes() == b"result"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert str(written) == f"{tmp_path / 'x'}, 6 bytes"


def test_a_finished_file_is_never_overwritten(tmp_path):
    (tmp_path / "x").write_text("finished")

    written = write_target(tmp_path / "x", write)
    again = write_target(tmp_path / "x", write)

    assert (tmp_path / "x").read_text() == "finished"
    assert [written.path.name, again.path.name] == ["x-2", "x-3"]
    assert "it is there already, and is kept" in str(written)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "x-2", "x-3"]


def test_a_file_that_comes_while_ours_is_written_is_kept(tmp_path):
    def beaten(place) -> None:
        (tmp_path / "x").write_text("another process's")
        place.write_bytes(b"ours")

    written = write_target(tmp_path / "x", beaten)

    assert (tmp_path / "x").read_text() == "another process's"
    assert written.path == tmp_path / "x-2"


def test_a_crash_between_the_two_names_of_a_finished_file_does_not_cost_it(tmp_path):
    """A process died when the file had its name, and still its temporary one too."""
    (tmp_path / "x").write_text("finished")
    (tmp_path / "x.part").hardlink_to(tmp_path / "x")

    check_target(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "finished"

    (tmp_path / "x.part").hardlink_to(tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "kept")
    write_target(tmp_path / "x", write)
    assert (tmp_path / "kept").read_text() == "finished"


def test_a_folder_that_has_gone_is_made_again(tmp_path):
    check_target(tmp_path / "out" / "x")
    (tmp_path / "out").rmdir()

    written = write_target(tmp_path / "out" / "x", write)

    assert written.path == tmp_path / "out" / "x"


def test_a_place_that_has_become_a_folder_gets_another_name_beside_it(tmp_path):
    (tmp_path / "loss.png").mkdir()
    (tmp_path / "loss-2.png").touch()

    written = write_target(tmp_path / "loss.png", write)

    assert written.path == tmp_path / "loss-3.png"
    assert written.path.read_bytes() == b"result"
    assert "it is a folder" in str(written)


def test_a_folder_that_has_become_a_file_is_left_for_the_temporary_one(tmp_path, monkeypatch):
    (tmp_path / "out").touch()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))

    written = write_target(tmp_path / "out" / "x.json", write)

    assert written.path.parent.parent == tmp_path / "elsewhere"
    assert written.path.name == "x.json"
    assert written.path.read_bytes() == b"result"
    assert len(written.refusals) == 2


def test_when_every_place_is_full_all_are_named_and_nothing_half_written_stays(tmp_path):
    with pytest.raises(Unusable, match="No space left on device") as caught:
        write_target(tmp_path / "x", full_disk)

    assert str(caught.value).count("No space left on device") == 3
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_never_replaced(tmp_path):
    written = write_target(tmp_path / "null", write)
    (tmp_path / "null").unlink()
    (tmp_path / "null").symlink_to("/dev/null")

    again = write_target(tmp_path / "null", write)

    assert again.path != written.path
    assert (tmp_path / "null").is_symlink()
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize(
    "read", [refuse_pipe, require_file, lambda path: read_small(path, 999, "it is none")]
)
@pytest.mark.parametrize("name", ["pipe", "/dev/zero"])
def test_a_pipe_or_device_is_named_with_the_remedy_and_not_waited_for(
    tmp_path, make_pipe, read, name
):
    make_pipe(tmp_path / "pipe")

    with pytest.raises(Unusable, match="is a pipe or a device: write what it gives to a file"):
        read(tmp_path / name)


@pytest.mark.parametrize(("mark", "remedy"), POINTERS.items())
def test_a_file_that_stands_for_another_is_named_with_what_brings_it(tmp_path, mark, remedy):
    (tmp_path / "a.json").write_bytes(mark + b"v1\noid sha256:12\nsize 9\n")
    (tmp_path / "b.json").write_bytes(b"about " + mark)

    for read in (
        lambda: read_small(tmp_path / "a.json", 999, "it is none"),
        lambda: refuse_pointer(tmp_path / "a.json"),
    ):
        with pytest.raises(Unusable, match=rf"a\.json stands for a file .* run {remedy} there$"):
            read()
    assert read_small(tmp_path / "b.json", 999, "it is none").endswith(mark)
    refuse_pointer(tmp_path / "b.json")
    refuse_pointer(tmp_path / "gone.json")


@pytest.fixture
def synced(tmp_path, monkeypatch):
    """What is synced, in order, each with the names and sizes in the folder at that time."""
    found = []

    def fsync(descriptor):
        status = os.fstat(descriptor)
        there = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        found.append(("folder" if stat.S_ISDIR(status.st_mode) else "file", there))

    monkeypatch.setattr(os, "fsync", fsync)
    return found


WRITERS = {
    "replaces": lambda place: write_durably(place, b"new"),
    "creates": lambda place: create_durably(place, b"new"),
    "writes a target": lambda place: write_target(place, lambda at: at.write_bytes(b"new")),
    "writes a text": lambda place: write_text(place, "new"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_is_on_the_disk_before_its_name_and_then_its_name_is(tmp_path, synced, writer):
    WRITERS[writer](tmp_path / "x")

    (first, before), (second, after) = synced
    assert (first, second) == ("file", "folder")
    assert "x" not in before
    assert list(before.values()) == [3]
    assert after["x"] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("write_it", [write_durably, create_durably])
def test_a_file_of_an_owner_is_the_owners_alone(tmp_path, write_it):
    before = os.umask(0)
    try:
        write_it(tmp_path / "x", b"secret")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600


def test_a_draft_from_before_a_crash_gives_its_mode_to_nobody(tmp_path):
    (tmp_path / "x.new").write_text("half")
    (tmp_path / "x.new").chmod(0o644)

    write_durably(tmp_path / "x", b"whole")

    assert (tmp_path / "x").read_bytes() == b"whole"
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o600


def test_a_file_that_is_there_is_not_made_again(tmp_path):
    (tmp_path / "x").write_text("kept")

    with pytest.raises(FileExistsError):
        create_durably(tmp_path / "x", b"other")

    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_a_crash_while_a_file_is_made_leaves_no_file_with_its_name(tmp_path, monkeypatch):
    def crash(_descriptor):
        raise OSError(errno.EIO, "the machine is off")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(OSError, match="off"):
        create_durably(tmp_path / "x", b"key")

    assert not (tmp_path / "x").exists()


def test_all_files_of_a_folder_are_synced_and_then_their_names(tmp_path, synced):
    for name in "ab":
        (tmp_path / name).write_text(name)

    sync_files(tmp_path)

    assert [kind for kind, _ in synced] == ["file", "file", "folder"]


def test_a_folder_that_cannot_be_synced_by_its_file_system_is_no_error(tmp_path, monkeypatch):
    def refuse(error):
        def fsync(_descriptor):
            raise OSError(error, "no")

        return fsync

    monkeypatch.setattr(os, "fsync", refuse(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", refuse(errno.EIO))
    with pytest.raises(OSError, match="no"):
        sync_folder(tmp_path)


def test_what_a_program_asked_for_is_written_under_that_name(tmp_path):
    written = write_answer(tmp_path / "new" / "x.json", "figures")

    assert written.path == tmp_path / "new" / "x.json"
    assert str(written) == f"{written.path}, 7 bytes"
    assert written.path.read_text() == "figures"


@pytest.mark.parametrize("before", ["", "the answer before, which is longer"])
def test_a_file_that_is_there_is_written_anew_for_whoever_has_it_open(tmp_path, before):
    """As `mktemp` and `tempfile.NamedTemporaryFile` make one for a program's answer."""
    file = tmp_path / "x.json"
    file.write_text(before)
    (tmp_path / "link").symlink_to(file)

    with file.open() as opened:
        written = write_answer(tmp_path / "link", "figures")

        assert opened.read() == "figures"
    assert written.path == tmp_path / "link"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "x.json"]


def test_an_answer_that_cannot_be_written_is_an_error_that_says_where_it_is(tmp_path):
    (tmp_path / "x.json").mkdir()

    with pytest.raises(
        Unusable, match=r"x\.json cannot be written: it is a folder; it is in "
    ) as no:
        write_answer(tmp_path / "x.json", "figures")

    assert Path(str(no.value).rpartition(" ")[2]).read_text() == "figures"


def test_where_no_folder_can_be_synced_none_is(tmp_path, synced, monkeypatch):
    monkeypatch.setattr(files, "CAN_SYNC_FOLDERS", False)

    write_durably(tmp_path / "x", b"new")

    assert [kind for kind, _ in synced] == ["file"]


class Held:
    """A file that somebody has open for some tries, on a system where that keeps its name."""

    def __init__(self, tries: int) -> None:
        self.left = tries

    def change(self) -> None:
        if self.left:
            self.left -= 1
            raise PermissionError(errno.EACCES, "in use")


def test_a_file_that_is_held_for_a_moment_is_waited_for():
    held = Held(4)

    patiently(held.change, tries=5, between_s=0.0)

    assert not held.left


@pytest.mark.parametrize(("tries", "held"), [(5, 5), (1, 1)])
def test_a_file_that_stays_held_is_an_error(tries, held):
    with pytest.raises(PermissionError):
        patiently(Held(held).change, tries=tries, between_s=0.0)
