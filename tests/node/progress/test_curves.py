"""Curves of a run: what is written, where it goes on, and that a full disk costs nothing else."""

import csv
import importlib.util
import threading
import time

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress import curves
from p2pswarm.node.progress.curves import HEADER, recorded, row_of, try_curves
from p2pswarm.progress.events import HeldOut, MicrobatchCounts, Note, Stepped

STEP = Stepped(1, 4.25, 900.0, 1e-3, 0.5, MicrobatchCounts(16, 8, 2), seconds=1.5)
RUN, NOW = "0123456789abcdef" * 2, "2026-11-26T16:05:00.000+00:00"
EVENTS = [STEP, Note("a note", seconds=1.6), HeldOut(1, 4.5, seconds=2.0)]


def until(true):
    ends_s = time.monotonic() + 30.0
    while not true():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_step_and_each_held_out_loss_is_a_row_and_everything_is_told(tmp_path):
    path, told = tmp_path / "new" / "curves.csv", []

    with recorded(path, told.append, RUN, lambda: NOW) as tell:
        for event in EVENTS:
            tell(event)
        until(lambda: len(rows(path)) == len(EVENTS) - 1)  # while the run goes on
        written = rows(path)

    assert told == EVENTS
    step, held_out = written
    assert (step.pop("time"), step.pop("run")) == (NOW, RUN[:12])
    assert {name: float(value) for name, value in step.items() if value} == row_of(STEP)
    assert step["held_out_loss"] == ""
    assert (held_out["step"], held_out["held_out_loss"], held_out["loss"]) == ("1", "4.5", "")


def test_a_file_goes_on(tmp_path):
    path = tmp_path / "curves.csv"
    for _ in range(2):
        with recorded(path, lambda _event: None, RUN, lambda: NOW) as tell:
            tell(STEP)

    assert [row["step"] for row in rows(path)] == ["1", "1"]
    assert path.read_text().splitlines()[0] == ",".join(HEADER)


def test_the_rows_of_two_runs_are_told_apart(tmp_path):
    path = tmp_path / "curves.csv"
    for run in (RUN, "f" * 32):
        with recorded(path, lambda _event: None, run, lambda: NOW) as tell:
            tell(STEP)

    assert [(row["step"], row["run"]) for row in rows(path)] == [("1", RUN[:12]), ("1", "f" * 12)]


def test_to_try_a_file_leaves_none_and_changes_none(tmp_path):
    path = tmp_path / "curves.csv"
    try_curves(path)
    assert not path.exists()

    with recorded(path, lambda _event: None, RUN, lambda: NOW) as tell:
        tell(STEP)
    before = path.read_bytes()
    try_curves(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("there", [b"mine\n1\n", b"\xff\xfe\x00", b"step,seconds\n"])
def test_another_file_stays_as_it_is(tmp_path, there):
    path = tmp_path / "curves.csv"
    path.write_bytes(there)

    with pytest.raises(Unusable, match=r"name another .*in train\.curves"):
        try_curves(path)
    assert path.read_bytes() == there


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(Unusable, match=r"file/curves\.csv: .* name another file in train\.curves"):
        try_curves(tmp_path / "file" / "curves.csv")


def test_a_disk_that_fills_costs_the_curves_alone(caplog):
    told = []
    with recorded(FULL, told.append, RUN, lambda: NOW) as tell:
        for _ in range(3):
            tell(STEP)

    assert told == [STEP] * 3
    assert caplog.text.count("no more curves are written") == 1


def test_a_disk_that_hangs_holds_up_no_event_and_no_end(monkeypatch, caplog):
    monkeypatch.setattr(curves, "WAITING_MAX", 4)
    monkeypatch.setattr(curves, "CLOSE_S", 0.1)
    told, hangs, path = [], threading.Event(), Full()
    path.open = lambda *_, **__: FullFile(hangs.wait)
    try:
        with recorded(path, told.append, RUN, lambda: NOW) as tell:
            for _ in range(9):
                tell(STEP)
    finally:
        hangs.set()

    assert told == [STEP] * 9
    assert caplog.text.count("the disk is too slow, rows are left out") == 1


class Full:
    """A path to a disk that is full after the header."""

    suffix = ".csv"
    parent = property(lambda self: self)

    def mkdir(self, **_):
        pass

    def open(self, *_, **__):
        return FullFile()


def is_full():
    raise OSError(28, "No space left on device")


class FullFile:
    def __init__(self, write_row=is_full):
        self.writes = 0
        self.write_row = write_row

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def seek(self, _):
        pass

    def readline(self, _):
        return ""

    def write(self, _):
        self.writes += 1
        if self.writes > 1:
            self.write_row()

    def flush(self):
        pass


FULL = Full()


def test_none_are_written_unless_they_are_asked_for():
    told = []
    with recorded(None, told.append, RUN, lambda: NOW) as tell:
        tell(STEP)
    assert told == [STEP]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is not None, reason="tensorboard is installed"
)
def test_a_folder_without_tensorboard_says_what_to_install(tmp_path):
    with pytest.raises(Unusable, match=r"pip install tensorboard, or name a file that .* \.csv"):
        try_curves(tmp_path / "curves")


def test_a_folder_is_for_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")

    with recorded(tmp_path / "board", lambda _event: None, RUN, lambda: NOW) as tell:
        for event in EVENTS:
            tell(event)

    assert list((tmp_path / "board" / RUN[:12]).glob("events.out.tfevents*"))


def test_a_row_that_a_kill_tore_is_cut_off(tmp_path):
    path = tmp_path / "curves.csv"
    with recorded(path, lambda _event: None, RUN, lambda: NOW) as tell:
        tell(STEP)
    whole = path.read_bytes()
    path.write_bytes(whole + b"2,3.25,4.")

    with recorded(path, lambda _event: None, RUN, lambda: NOW) as tell:
        assert path.read_bytes() == whole
        tell(STEP)
    assert [row["step"] for row in rows(path)] == ["1", "1"]
