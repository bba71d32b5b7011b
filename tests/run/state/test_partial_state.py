"""Tests of `run/state/partial_state.py`."""

import errno
import hashlib
import os
import stat
from io import FileIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import NotSaved
from p2pswarm.run.state.partial_state import (
    OLD_S,
    SLOT_HEAD_BYTES,
    SPARE_BYTES,
    PartialFile,
    PartialFolder,
    PartialLayout,
    PartialMap,
    slot_hash,
    slot_head,
    slot_version,
)

RUN = b"r" * 16
SIZES = (60, 60, 24)


def slots(layout):
    heads = [layout.offset(piece) for piece in range(len(layout.sizes))]
    return [(at, at + SLOT_HEAD_BYTES + size) for at, size in zip(heads, layout.sizes, strict=True)]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9).map(sorted))
def test_slots_follow_the_head_and_never_overlap(sizes):
    layout = PartialLayout(RUN, 0, sizes[::-1])

    ends = [len(layout.head), *(end for _, end in slots(layout))]

    assert all(begin >= end for (begin, _), end in zip(slots(layout), ends, strict=False))


@pytest.mark.parametrize(
    "other", [(b"q" * 16, 0, SIZES), (RUN, 1, SIZES), (RUN, 0, (60, 84)), (RUN, 0, (60, 60, 25))]
)
def test_another_run_stage_or_cut_has_another_head(other):
    assert PartialLayout(*other).head != PartialLayout(RUN, 0, SIZES).head
    assert len(PartialLayout(*other).head) == len(PartialLayout(RUN, 0, SIZES).head)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=50))
def test_a_slot_tells_its_version_and_its_hash(version, data):
    head = slot_head(version, memoryview(data))

    assert len(head) == SLOT_HEAD_BYTES
    assert slot_version(head) == version
    assert slot_hash(head, data) == hashlib.sha256(data).digest()


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_torn_slot_is_none(data, draw):
    head = slot_head(3, memoryview(data))
    other = draw.draw(st.binary(max_size=50).filter(lambda other: other != data))

    assert slot_hash(head, other) is None


@pytest.mark.parametrize("head", [b"", b"x" * (SLOT_HEAD_BYTES - 1), bytes(SLOT_HEAD_BYTES)])
def test_what_was_never_written_has_no_version(head):
    assert slot_version(head) is None


def test_only_pieces_of_the_stages_version_are_of_use():
    kept = PartialMap({3: 8, 0: 7, 1: 8})

    assert kept.usable(8) == [1, 3]
    assert kept.usable(9) == []


def test_what_the_file_lacks_is_written_before_what_is_old_there():
    kept = PartialMap({0: 7, 1: 6})
    held = {0: 8, 1: 8, 5: 8}

    order = []
    while (piece := kept.due(held)) is not None:
        kept.written(piece, 8)
        order.append(piece)

    assert order == [5, 1, 0]


def test_nothing_is_due_that_is_not_held():
    assert PartialMap({0: 7}).due({}) is None
    assert PartialMap({0: 7}).due({0: 7}) is None


def test_a_person_is_told_what_the_file_was_good_for():
    assert PartialMap({}).remark(0, 5) == ""
    used = "pieces of the weights taken from the folder `state`: "
    old = "older than step 5 and fetched again: "
    assert PartialMap({0: 5, 1: 5}).remark(2, 5) == f"{used}2"
    assert PartialMap({0: 5, 1: 4}).remark(1, 5) == f"{used}1; {old}1"
    assert PartialMap({0: 4}).remark(0, 5) == f"{old}1"


PARTIAL_FILE_RUN = b"r" * 16
PARTIAL_FILE_SIZES = (40, 40, 16)
VERSION_BYTES = 8  # a slot of another version is found out by its proof
PIECES = [bytes([65 + piece]) * size for piece, size in enumerate(PARTIAL_FILE_SIZES)]


def opened(path, layout=None, **how):
    file = PartialFile(
        path, layout or PartialLayout(PARTIAL_FILE_RUN, 0, PARTIAL_FILE_SIZES), **how
    )
    file.begin()
    return file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state" / "a.partial"


def write(file, piece, version=5):
    file.write(piece, version, memoryview(PIECES[piece]))


def contents(file):
    kept = [file.read(piece) for piece in range(len(PARTIAL_FILE_SIZES))]
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
    begin = PartialLayout(PARTIAL_FILE_RUN, 0, PARTIAL_FILE_SIZES).offset(1) + VERSION_BYTES
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
    "other",
    [
        PartialLayout(PARTIAL_FILE_RUN, 1, PARTIAL_FILE_SIZES),
        PartialLayout(b"q" * 16, 0, PARTIAL_FILE_SIZES),
    ],
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
    file = opened(path, free=lambda _: SPARE_BYTES + PARTIAL_FILE_SIZES[0] - 1)

    with pytest.raises(NotSaved, match=r"a\.partial: less than 256 MiB would be free on its disk"):
        write(file, 0)
    assert contents(file) == [None, None, None]

    write(opened(path, free=lambda _: SPARE_BYTES + PARTIAL_FILE_SIZES[0]), 0)


def test_a_disk_that_fills_up_is_told_in_one_line(path):
    class Full(FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open_file(where, mode):
        return Full(where, mode) if mode == "r+b" else FileIO(where, mode)

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
        return Halves(where, mode) if mode == "r+b" else FileIO(where, mode)

    write(opened(path, open_file=open_file), 0)

    assert contents(opened(path)) == [PIECES[0], None, None]


def test_weights_that_are_half_fetched_are_their_owners_alone(path):
    before = os.umask(0)
    try:
        opened(path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("work", ["begin", "remove"])
def test_a_folder_where_the_file_should_be_is_told(path, work):
    path.mkdir(parents=True)
    file = PartialFile(path, PartialLayout(PARTIAL_FILE_RUN, 0, PARTIAL_FILE_SIZES))

    with pytest.raises(NotSaved, match=r"a\.partial: "):
        getattr(file, work)()


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "state").write_bytes(b"")

    with pytest.raises(NotSaved, match=r"partial: Not a directory|partial: File exists"):
        PartialFolder(tmp_path / "state").file(PARTIAL_FILE_RUN, 0, PARTIAL_FILE_SIZES).begin()


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
        folder.file(PARTIAL_FILE_RUN, stage, PARTIAL_FILE_SIZES).begin()
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
