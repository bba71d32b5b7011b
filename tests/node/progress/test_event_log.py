"""The log of events: what is in its files, and that no disk hinders the run."""

import errno
import os
import shutil
import threading

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.event_files import read_events
from p2pswarm.node.progress.event_log import (
    PEERS_EVERY_S,
    WAITING_MAX,
    EventFiles,
    EventLog,
    log_files,
    open_event_log,
    try_event_log,
)
from p2pswarm.progress.event_lines import EventLine, EventNumbers, from_line
from p2pswarm.progress.events import Begun, Event, MachineFacts, Note, Peers, Started

BEGUN = Begun("a run", "trainer", "attic", "0.1.0", steps=10, stages=2)
FACTS = MachineFacts("abcdefgh", "cellar", "cpu")


class Telling:
    """A process that numbers events, on a clock that goes on by a second each."""

    def __init__(self, by: str = "k7f2") -> None:
        self._at = 1_000.0
        self._numbers = EventNumbers("5f0c", by, self._now)

    def _now(self) -> float:
        self._at += 1.0
        return self._at

    def stamp(self, *events: Event) -> list[EventLine]:
        return [self._numbers.stamp(event) for event in events]


def notes(count: int) -> list[Event]:
    return [Note(f"note {number}") for number in range(count)]


def events_in(path) -> list[EventLine]:
    return [from_line(line) for line in path.read_text().splitlines()]


def read(*paths) -> tuple[list[EventLine], list[str]]:
    """The events of logs, and what is said about them."""
    remarks = []
    return list(read_events(paths, "", remarks.append)), remarks


def test_each_event_is_a_line_of_a_private_file_and_figures_are_thinned(tmp_path):
    path = tmp_path / "new" / "run.events.jsonl"
    told = Telling().stamp(BEGUN, *[Peers(())] * 25, Note("a note"))

    with open_event_log(path, "train.log") as on_event:
        for one in told:
            on_event(one)

    found = events_in(path)
    assert found[0] == told[0]
    assert found[-1] == told[-1]
    figures = [one.at for one in found[1:-1]]
    assert figures == [1_002.0, 1_002.0 + PEERS_EVERY_S, 1_002.0 + 2 * PEERS_EVERY_S]
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(path) == (found, [])


def test_no_log_takes_events_as_well():
    with open_event_log(None, "train.log") as on_event:
        on_event(Telling().stamp(BEGUN)[0])


def test_a_full_file_gets_a_number_and_the_next_begins_with_what_is_told_once(tmp_path):
    path, files = tmp_path / "run.jsonl", EventFiles(tmp_path / "run.jsonl", file_bytes=2_000)
    told = Telling().stamp(BEGUN, FACTS, *notes(40))

    for one in told:
        files.learn(one)
        files.write(one)
    files.close()

    first, second, *_ = log_files(path)
    assert first.name == "run.000001.jsonl"
    begins = events_in(second)[:3]
    assert [one.event for one in begins[:2]] == [BEGUN, FACTS]
    assert {one.n for one in begins[:2]} == {events_in(first)[-1].n}
    assert begins[2].n == begins[1].n + 1
    found, remarks = read(path)
    assert remarks == []
    assert [one for one in found if isinstance(one.event, Note)] == told[2:]


def test_of_too_many_files_the_oldest_are_deleted(tmp_path):
    files = EventFiles(tmp_path / "run.jsonl", file_bytes=1_000, all_bytes=5_000)

    for one in Telling().stamp(BEGUN, *notes(200)):
        files.learn(one)
        files.write(one)
    files.close()

    there = log_files(tmp_path / "run.jsonl")
    assert sum(path.stat().st_size for path in there) <= 5_500
    assert there[0].name > "run.000010.jsonl"
    assert read(tmp_path / "run.jsonl")[1] == []


def test_a_process_that_is_started_again_goes_on_behind_a_torn_line(tmp_path):
    path = tmp_path / "run.jsonl"
    first, second = Telling().stamp(BEGUN, Note("whole"))
    path.write_text(f"{first.line}\n{second.line}\n{second.line[:40]}")

    files = EventFiles(path)
    (again,) = Telling().stamp(BEGUN)
    files.write(again)
    files.close()

    assert read(path) == ([first, second, again], [])


def test_a_log_whose_only_line_is_torn_is_begun_anew(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text('{"v":2,"at":17')
    try_event_log(path, "train.log")

    files = EventFiles(path)
    told = Telling().stamp(BEGUN)
    files.write(told[0])
    files.close()

    assert events_in(path) == told


def test_a_folder_that_vanishes_is_made_again(tmp_path):
    path = tmp_path / "logs" / "run.jsonl"
    files = EventFiles(path)
    first, second = Telling().stamp(BEGUN, Note("after"))
    files.learn(first)
    files.write(first)

    shutil.rmtree(path.parent)
    files.sync()
    files.write(second)
    files.close()

    assert [one.event for one in events_in(path)] == [BEGUN, Note("after")]


class BadDisk(EventFiles):
    """A disk that takes nothing for some writes."""

    def __init__(self, path, failures: int) -> None:
        super().__init__(path)
        self._failures = failures

    def write(self, told: EventLine) -> None:
        if self._failures:
            self._failures -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write(told)


def test_a_full_disk_is_said_once_and_so_is_that_it_has_room_again(tmp_path, caplog):
    path = tmp_path / "run.jsonl"
    events = EventLog(BadDisk(path, failures=3), retry_s=0.0)
    events.start()

    for one in Telling().stamp(BEGUN, *notes(5)):
        events.on_event(one)
    events.close()

    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"{path}: no events are written until it can be: No space left on device; training goes on",
        f"{path}: events are written again",
    ]
    assert [one.n for one in events_in(path)] == [4, 5, 6]


class SlowDisk(EventFiles):
    """A disk that stands still until it is told to go on."""

    def __init__(self, path) -> None:
        super().__init__(path)
        self.goes = threading.Event()

    def write(self, told: EventLine) -> None:
        self.goes.wait()
        super().write(told)


def test_a_disk_that_stands_still_keeps_nobody_waiting(tmp_path, caplog):
    files = SlowDisk(tmp_path / "run.jsonl")
    events = EventLog(files)
    events.start()

    for one in Telling().stamp(*notes(WAITING_MAX + 10)):
        events.on_event(one)
    files.goes.set()
    events.close()

    said = [record.getMessage() for record in caplog.records]
    assert said == [f"{files.path}: the disk is too slow, events are left out"]


def test_to_try_a_log_leaves_none_and_changes_none(tmp_path):
    path = tmp_path / "run.jsonl"
    try_event_log(path, "train.log")
    assert not path.exists()
    text = Telling().stamp(Started(1))[0].line + "\n"
    path.write_text(text)

    try_event_log(path, "train.log")

    assert path.read_text() == text


def test_what_is_no_log_is_refused(tmp_path):
    text, folder = tmp_path / "my book.txt", tmp_path / "a folder"
    text.write_text("Call me Ishmael.\n")
    folder.mkdir()

    with pytest.raises(Unusable, match=r"is no log of events: name another file in train\.log"):
        try_event_log(text, "train.log")
    with pytest.raises(Unusable, match=r"is no file: name another in serve\.log"):
        try_event_log(folder, "serve.log")
    with pytest.raises(Unusable, match=r"File exists: name another file in serve\.log"):
        try_event_log(text / "run.jsonl", "serve.log")
    assert text.read_text() == "Call me Ishmael.\n"


def test_files_of_several_nodes_are_one_row_by_their_clocks(tmp_path):
    telling = {by: Telling(by) for by in ("ann", "bob")}
    for by, one in telling.items():
        lines = [told.line for told in one.stamp(BEGUN, *notes(3))]
        (tmp_path / f"{by}.jsonl").write_text("\n".join(lines))

    found, remarks = read(tmp_path / "ann.jsonl", tmp_path / "bob.jsonl")

    assert remarks == []
    assert [(one.at, one.by) for one in found] == sorted((one.at, one.by) for one in found)
    assert len(found) == 8


def test_a_log_without_an_event_and_one_that_is_not_there_are_refused(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.touch()

    with pytest.raises(Unusable, match=r"no event: name a file of train\.log or serve\.log"):
        read(empty)
    with pytest.raises(Unusable, match="No such file or directory; name another file"):
        read(tmp_path / "gone.jsonl")
