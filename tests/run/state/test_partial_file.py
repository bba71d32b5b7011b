"""A newcomer's file on disks that are torn, full, foreign or not there."""

import errno
import os
from io import FileIO

import pytest

from p2pswarm.base.errors import NotSaved
from p2pswarm.run.state.partial_file import (
    OLD_S,
    SPARE_BYTES,
    PartialFile,
    PartialFolder,
    open_unbuffered,
)
from p2pswarm.run.state.partial_state import PartialLayout

RUN = b"r" * 16
SIZES = (40, 40, 16)
VERSION_BYTES = 8  # a slot of another version is found out by its proof
PIECES = [bytes([65 + piece]) * size for piece, size in enumerate(SIZES)]


def opened(path, layout=None, **how):
    file = PartialFile(path, layout or PartialLayout(RUN, 0, SIZES), **how)
    file.begin()
    return file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "a.partial"


def write(file, piece, version=5):
    file.write(piece, version, memoryview(PIECES[piece]))


def contents(file):
    kept = [file.read(piece) for piece in range(len(SIZES))]
    return [None if one is None else bytes(one[0]) for one in kept]


def test_another_process_finds_what_was_written(path):
    file = opened(path)
    write(file, 2)
    write(file, 0, version=6)

    again = opened(path)

    assert again.map.usable(5) == [2]
    assert again.map.usable(6) == [0]
    assert contents(again) == [PIECES[0], None, PIECES[2]]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_write_that_was_cut_short_costs_that_piece_alone(path, cut):
    file = opened(path)
    for piece in range(3):
        write(file, piece)
    data = bytearray(path.read_bytes())
    begin = PartialLayout(RUN, 0, SIZES).offset(1) + VERSION_BYTES
    data[begin : begin + cut] = b"z" * cut
    path.write_bytes(data)

    again = opened(path)

    assert contents(again) == [PIECES[0], None, PIECES[2]]


def test_a_file_that_ends_in_a_slot_has_the_slots_before(path):
    file = opened(path)
    for piece in range(3):
        write(file, piece)
    os.truncate(path, path.stat().st_size - 1)

    assert contents(opened(path)) == [PIECES[0], PIECES[1], None]


@pytest.mark.parametrize(
    "other", [PartialLayout(RUN, 1, SIZES), PartialLayout(b"q" * 16, 0, SIZES)]
)
def test_a_file_of_another_run_or_stage_is_begun_anew(path, other):
    write(opened(path), 0)

    file = opened(path, other)

    assert contents(file) == [None, None, None]
    assert file.map.usable(5) == []
    assert opened(path).map.usable(5) == []


@pytest.mark.parametrize("content", [b"", b"x", b"p2pswarm pieces 1\n" + bytes(20)])
def test_rubbish_is_begun_anew(path, content):
    path.parent.mkdir()
    path.write_bytes(content)
    file = opened(path)
    write(file, 1)

    assert contents(opened(path)) == [None, PIECES[1], None]


def test_a_piece_is_written_again_in_its_place(path):
    file = opened(path)
    write(file, 0)
    before = path.stat().st_size
    write(file, 0, version=6)

    assert file.map.usable(6) == [0]
    assert path.stat().st_size == before


def test_the_last_space_of_a_disk_is_left_to_others(path):
    file = opened(path, free=lambda _: SPARE_BYTES + SIZES[0] - 1)

    with pytest.raises(NotSaved, match=r"a\.partial: less than 256 MiB would be free on its disk"):
        write(file, 0)
    assert contents(file) == [None, None, None]

    write(opened(path, free=lambda _: SPARE_BYTES + SIZES[0]), 0)


def test_a_disk_that_fills_up_is_told_in_one_line(path):
    class Full(FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_file(where, mode):
        return Full(where, mode) if mode == "r+b" else open_unbuffered(where, mode)

    file = opened(path, open_file=open_file)

    with pytest.raises(NotSaved) as told:
        write(file, 0)
    assert str(told.value) == f"{path}: No space left on device"
    file.remove()
    assert not path.exists()


def test_a_disk_that_takes_half_a_piece_at_a_time_gets_all(path):
    class Halves(FileIO):
        def write(self, data):
            return super().write(data[: max(1, len(data) // 2)])

    def open_file(where, mode):
        return Halves(where, mode) if mode == "r+b" else open_unbuffered(where, mode)

    write(opened(path, open_file=open_file), 0)

    assert contents(opened(path)) == [PIECES[0], None, None]


@pytest.mark.parametrize("work", ["begin", "remove"])
def test_a_folder_where_the_file_should_be_is_told(path, work):
    path.mkdir(parents=True)
    file = PartialFile(path, PartialLayout(RUN, 0, SIZES))

    with pytest.raises(NotSaved, match=r"a\.partial: "):
        getattr(file, work)()


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(NotSaved, match=r"partial: Not a directory|partial: File exists"):
        PartialFolder(tmp_path / "state").file(RUN, 0, SIZES).begin()


def test_a_file_that_vanishes_costs_its_pieces(path):
    file = opened(path)
    write(file, 0)
    path.unlink()

    assert contents(file) == [None, None, None]
    with pytest.raises(NotSaved):
        write(file, 1)
    file.remove()


def test_files_of_yesterday_are_removed_and_nothing_else(tmp_path):
    folder = PartialFolder(tmp_path)
    for stage in (0, 1):
        folder.file(RUN, stage, SIZES).begin()
    (tmp_path / "run.json").write_text("{}")
    now_s = 1e9 + OLD_S
    os.utime(tmp_path / f"{RUN.hex()}-0.partial", (1e9 - 1, 1e9 - 1))
    os.utime(tmp_path / f"{RUN.hex()}-1.partial", (1e9, 1e9))
    os.utime(tmp_path / "run.json", (0, 0))

    folder.remove_old(now_s)

    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{RUN.hex()}-1.partial", "run.json"]


def test_an_old_file_that_cannot_be_removed_stops_nobody(tmp_path):
    (tmp_path / "a.partial").mkdir()
    os.utime(tmp_path / "a.partial", (0, 0))

    PartialFolder(tmp_path).remove_old(1e9)

    assert (tmp_path / "a.partial").exists()
