"""Curves at Weights & Biases: what is sent and what is not, and that wandb hinders no run.

Nothing here uses the network: a library in this file stands for wandb, and where wandb is
installed it is tried as it is, offline.
"""

import dataclasses
import importlib
import importlib.util
import json
import os
import queue
import struct
import sys
import types

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.curves import row_of
from p2pswarm.node.progress.wandb_curves import (
    PRIVATE,
    WandbCurves,
    sent,
    try_wandb,
)
from p2pswarm.progress.events import HeldOut, MicrobatchCounts, Note, Stepped
from p2pswarm.run.manifest import RunIdentity
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.plain_settings import plain_settings

STEP = Stepped(1, 4.25, 900.0, 1e-3, 0.5, MicrobatchCounts(16, 8, 2), seconds=1.5)
EVENTS = [STEP, Note("a note", seconds=1.6), HeldOut(1, 4.5, seconds=2.0)]
ROWS = [row_of(event) for event in EVENTS if row_of(event)]
SECRET = "/home/anna/models"
RUN = RunConfig(
    name="my run",
    owner="0f" * 32,
    model=ModelConfig(config=json.dumps({"_name_or_path": SECRET}), package="annas-package==1"),
)
IDENTITY = RunIdentity(RUN, b"text", b"n" * 16, b"f" * 32)
NOWHERE = "no_package_of_this_name"


class Run:
    """What `init` gives."""

    def __init__(self):
        self.rows, self.metrics, self.ended = [], [], False

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    def finish(self):
        self.ended = True


class Library:
    """As much of wandb as is used; `fails` says what `init` raises, one a call."""

    class Error(Exception):
        """As `wandb.Error`."""

    def __init__(self, fails=(), mode="online", known=True):
        self.fails, self.calls, self.run = list(fails), [], Run()
        self.mode, self.known, self.free = mode, known, True

    def Settings(self, **values):  # noqa: N802 - wandb's name
        return types.SimpleNamespace(**({"mode": self.mode} | values))

    def setup(self, settings):
        return types.SimpleNamespace(settings=settings)

    def login(self, *, prompt, verify):
        assert not prompt
        assert not verify
        return self.known

    def teardown(self):
        self.free = True

    def init(self, **values):
        assert self.free, "the id is in use by the run that failed"
        self.calls.append(values)
        self.free = False
        if self.fails:
            raise self.fails.pop(0)
        return self.run


def test_numbers_and_named_choices_are_told_and_no_text_or_path_is():
    told = plain_settings(RUN, "run.")

    assert told["run.steps"] == RUN.steps
    assert told["run.emulated"] is False
    assert told["run.optimizer.schedule"] == "cosine"
    assert told["run.codecs.activation"] == "bf16"
    named = {name for name in told if isinstance(told[name], str)}
    assert not {"run.name", "run.owner", "run.model.config", "run.model.package"} & named
    assert SECRET not in str(told)
    assert "anna" not in str(told)


def test_no_setting_of_a_machine_would_be_told_either(tmp_path):
    config = NodeConfig(state=tmp_path)

    assert str(tmp_path) not in str(plain_settings(config))


def test_rows_go_to_the_runs_own_id_and_are_drawn_by_their_step():
    wandb = Library()

    told = send(wandb, "tries/first")

    assert told == []
    (call,) = wandb.calls
    assert (call["project"], call["name"]) == ("tries", "first")
    assert (call["id"], call["resume"]) == (IDENTITY.run.hex(), "allow")
    assert call["config"] == plain_settings(RUN, "run.")
    assert PRIVATE.items() <= vars(call["settings"]).items()
    assert wandb.run.rows == ROWS
    assert wandb.run.metrics == [("*", "step")]
    assert wandb.run.ended


def send(wandb, place, rows=ROWS):
    """Send rows and the end; returns what is left in the queue."""
    waiting = queue.Queue()
    for row in (*rows, None):
        waiting.put(row)
    WandbCurves(wandb, place, IDENTITY).send(waiting)
    return [waiting.get() for _ in range(waiting.qsize())]


def test_the_runs_name_is_the_default_and_a_trainer_that_never_leads_begins_nothing():
    wandb = Library()
    send(wandb, "tries", rows=[])
    assert wandb.calls == []

    send(wandb, "tries")
    assert wandb.calls[0]["name"] == "my run"


def test_a_service_that_is_down_leaves_the_curves_on_this_machine(caplog):
    wandb = Library(fails=[Library.Error("timed\nout")])

    send(wandb, "tries")

    assert [vars(call["settings"])["mode"] for call in wandb.calls] == ["online", "offline"]
    assert wandb.run.rows == ROWS
    assert "timed out; the curves stay on this machine: wandb sync sends them" in caplog.text


@pytest.mark.parametrize("error", [OSError("disk\nfull"), ValueError("disk full")])
def test_whatever_wandb_raises_is_said_once_and_costs_the_curves_alone(caplog, error):
    wandb = Library(fails=[error, error])

    assert send(wandb, "tries")  # rows that nobody takes any more

    assert caplog.text.count("no more curves are sent: disk full") == 1


@pytest.mark.parametrize("call", [try_wandb, lambda *args: sent(args[0], IDENTITY, print, args[1])])
def test_without_the_package_one_line_says_what_to_install(call):
    with pytest.raises(Unusable, match=rf"^train.wandb: .*: pip install {NOWHERE}, or set"):
        entered(call("tries", NOWHERE))


def entered(context):
    if context is not None:
        with context:
            pass


def test_a_folder_of_wandbs_own_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb_files").mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Unusable, match="pip install wandb_files"):
        try_wandb("tries", "wandb_files")


def test_who_asks_for_none_needs_no_package():
    told = []
    try_wandb("", NOWHERE)

    with sent("", IDENTITY, told.append, NOWHERE) as tell:
        tell(STEP)

    assert told == [STEP]


@pytest.fixture
def installed(monkeypatch):
    """Give a function that has a library stand for an installed package, under its name."""

    def install(library) -> str:
        monkeypatch.setitem(sys.modules, "wandb_b", library)
        return "wandb_b"

    return install


def test_events_are_told_at_once_and_sent_by_a_thread(installed):
    wandb, told = Library(), []

    with sent("tries", IDENTITY, told.append, installed(wandb)) as tell:
        for event in EVENTS:
            tell(event)
        assert told == EVENTS

    assert wandb.run.rows == ROWS
    assert wandb.run.ended


def test_where_somebody_is_logged_in_or_nothing_is_sent_the_run_may_begin(installed):
    try_wandb("tries", installed(Library()))
    try_wandb("tries", installed(Library(mode="offline", known=False)))


def test_nobody_is_asked_for_a_key_while_the_node_runs(installed):
    with pytest.raises(Unusable, match="run wandb login, or set WANDB_MODE=offline"):
        try_wandb("tries", installed(Library(known=False)))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TypeError("no argument prompt"), "too old .*: pip install --upgrade"),
        (ValueError("extra_forbidden"), "too old .*: pip install --upgrade"),
        (Library.Error("a key\nof 3 characters"), "train.wandb: a key of 3 characters"),
    ],
)
def test_a_wandb_that_cannot_be_used_is_refused_before_the_run(installed, error, said):
    class Refusing(Library):
        def setup(self, settings):
            raise error

    with pytest.raises(Unusable, match=said):
        try_wandb("tries", installed(Refusing()))


BLOCK_BYTES, START_BYTES, WHOLE, LAST = 32_768, 7, 1, 4


def records(data):
    """The records of wandb's file, whose blocks are those of LevelDB's log."""
    at, record = START_BYTES, b""
    while at + START_BYTES <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < START_BYTES:
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += START_BYTES + length
        record += data[at - length : at]
        if kind in (WHOLE, LAST):
            yield record
            record = b""


@pytest.mark.filterwarnings("default")  # of wandb
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_itself_keeps_the_rows_and_nothing_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    try_wandb("tries")

    for _ in range(2):  # the second goes on, as after a takeover
        with sent("tries", IDENTITY, lambda _event: None) as tell:
            for event in EVENTS:
                tell(event)

    importlib.import_module("wandb").teardown()
    proto = importlib.import_module("wandb.proto.wandb_internal_pb2")
    folders = sorted(tmp_path.glob(f"wandb/offline-run-*-{IDENTITY.run.hex()}*"))
    files = [path for folder in folders for path in folder.glob("*.wandb")]
    assert files
    rows = []
    for path in files:
        data = path.read_bytes()
        for machine in (SECRET, str(tmp_path), os.uname().nodename, os.path.realpath(__file__)):
            assert machine.encode() not in data
        found = [proto.Record.FromString(record) for record in records(data)]
        for record in found:
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {each.nested_key[0]: json.loads(each.value_json) for each in items}
                rows.append({name: row[name] for name in row if not name.startswith("_")})
        (run,) = [each.run for each in found if each.WhichOneof("record_type") == "run"]
        assert run.run_id == IDENTITY.run.hex()
        assert run.host == ""
        told = {each.key: json.loads(each.value_json) for each in run.config.update}
        assert {name: told[name] for name in told if name != "_wandb"} == plain_settings(
            dataclasses.replace(RUN), "run."
        )
    assert rows == ROWS * 2
