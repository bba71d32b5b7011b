"""A report has what mends a bug, and none of the secrets of the node that it is about."""

import base64
import dataclasses
import io
import json
import os
import zipfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.node.report.bug_report import (
    EVENTS_MAX,
    FILE_CHARS_MAX,
    IS_SET,
    LOG_LINES_MAX,
    BugReport,
    archive,
)
from p2pswarm.node.report.machine import facts, redaction, vocabulary
from p2pswarm.node.report.redaction import LEFT_OUT, Redaction
from p2pswarm.progress.events import Checkpointed, Ended, Event, MicrobatchCounts, Note, Stepped
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.plain_settings import set_texts

from .markers import forms, found_in, log_templates, marked

WORDS = vocabulary()
TEMPLATES = log_templates()
COUNTS = MicrobatchCounts(16, 8, 2)
STEPPED = Stepped(3, 2.5, 900.0, 1e-3, 0.5, COUNTS, seconds=1.5)
REPORTS = 200
AROUND = (
    *("{}", "{}-7", "my {} run", "/home/{}/a", "{}.example:4000", "é{}", "'{}'", "{} step"),
    *("8.8.8.8/{}", "https://{}:pw@host/x?y={}", "p2pswarm/{}.py", "12{}34", "{}\n{}"),
)
"""What stands around the letters of a secret."""


def line_of(event: Event) -> str:
    """As a log of events has it; a report takes lines of any version."""
    fields = {"v": 2, "at": 1.5, "run": "5f0c1a2b", "by": "k7f2abcd", "n": 1}
    return json.dumps(fields | {"event": type(event).__name__.lower(), **dataclasses.asdict(event)})


def files(data: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        return {name: zipped.read(name).decode() for name in zipped.namelist()}


def allowing(**more) -> Redaction:
    return Redaction(vocabulary=WORDS, **more)


class Secrets:
    """Makes secrets whose letters are found again."""

    def __init__(self, seed: int):
        self.rng = Random(seed)
        self.letters: list[str] = []

    def letters_alone(self) -> str:
        self.letters.append("".join(self.rng.choices("bcdfghjkmnpqrstvwxz", k=18)))
        return self.letters[-1]

    def __call__(self) -> str:
        return self.rng.choice(AROUND).replace("{}", self.letters_alone())


@pytest.mark.full
@settings(max_examples=REPORTS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
def test_no_secret_of_200_nodes_is_in_their_reports(seed, tmp_path_factory):
    refuse_secrets(seed, tmp_path_factory.mktemp("node"))


@settings(max_examples=REPORTS // 10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
def test_no_secret_of_a_node_is_in_its_report(seed, tmp_path_factory):
    refuse_secrets(seed, tmp_path_factory.mktemp("node"))


def refuse_secrets(seed: int, folder: Path) -> None:
    """Each text of the settings, the key, the invitation, the environment and the paths."""
    secret = Secrets(seed)
    key, invitation = folder / secret.letters_alone(), folder / secret.letters_alone()
    with identity_from(key):
        raw = key.read_bytes()
    invitation.write_text(secret())
    config = dataclasses.replace(marked(NodeConfig(), secret), identity=key, invite=str(invitation))
    texts = [text for each in set_texts(config).values() for text in each]
    texts += [secret(), key.name, raw.hex(), base64.b64encode(raw).decode(), invitation.read_text()]
    said = secret.rng.sample(texts, k=20)
    said += [form.decode("latin-1") for form in forms(secret.letters[0])]
    log = [
        secret.rng.choice(TEMPLATES).replace("%s", text).replace("%r", repr(text)) for text in said
    ]
    events = [
        line_of(event)
        for text in said
        for event in (Note(text), Checkpointed(3, text, 1.0), Ended(3, text, True, 9.0, COUNTS))
    ]
    named = {"run_name": said[0], "name": said[1], "by": said[2], said[3]: [said[4]]}
    events.append(json.dumps({"event": "begun", **named}))

    report = BugReport(
        settings=config,
        events=events,
        log=log,
        stacks=[f'  File "{text}", line 8 in {text}' for text in said],
        findings={"advice": said, "found": {"router": said[0], "states": {said[1]: said[2]}}},
        machine=facts(said),
    )
    made = archive(report, dataclasses.replace(redaction(config), vocabulary=WORDS))

    assert found_in(made, secret.letters) == []
    assert raw.hex().encode() not in made
    assert raw not in made
    assert set(json.loads(files(made)["settings.json"])) > set(set_texts(config))


def test_no_secret_of_the_environment_is_in_a_report(monkeypatch):
    """Also one of the program's own words, and one of digits."""
    monkeypatch.setenv("SOME_TOKEN", "coordinator-averaging-4711")
    monkeypatch.setenv("SOME_PIN", "73914682")
    said = "the coordinator-averaging-4711 has 73914682 of 12 steps"

    made = archive(BugReport(log=[said]), redaction(None))

    assert files(made)["log.txt"] == f"the {LEFT_OUT} has {LEFT_OUT} of 12 steps\n"


def test_name_of_the_machine_is_there_only_if_its_owner_allows_it():
    name = os.uname().nodename

    without = archive(BugReport(log=[f"node {name} leaves"]), redaction(None))
    named = archive(BugReport(log=[f"node {name} leaves"]), redaction(None, named=True))

    assert files(without)["log.txt"] == f"node {LEFT_OUT} leaves\n"
    assert files(named)["log.txt"] == f"node {name} leaves\n"


def test_report_has_what_mends_a_bug():
    peer = "k7f2abcd"
    peers = {"event": "peers", "peers": [{"peer": peer, "stage": 1, "ready": True}]}
    config = NodeConfig(role="stage", listen=":4000")
    report = BugReport(
        settings=config,
        events=[line_of(STEPPED), json.dumps(peers)],
        log=[f"W p2pswarm.net.link: {peer} at 8.8.8.8:4000: Connection reset by peer"],
        findings={"nat": "cone", "found": {"clock_ahead_s": 0.25, "router": "192.168.1.1"}},
    )

    made = files(archive(report, allowing()))

    chosen = json.loads(made["settings.json"])
    stepped, servers = map(json.loads, made["events.jsonl"].splitlines())
    found = json.loads(made["doctor.json"])["found"]
    assert (chosen["role"], chosen["serve.grace_s"], chosen["listen"]) == ("stage", 20.0, IS_SET)
    assert stepped == json.loads(line_of(STEPPED))
    assert servers == peers
    assert f"{peer} at 8.8.0.0/16:4000: Connection reset by peer" in made["log.txt"]
    assert found == {"clock_ahead_s": 0.25, "router": "private"}


def test_equal_reports_are_equal_bytes():
    report = BugReport(events=[line_of(STEPPED)], log=["a node leaves"], machine=facts())

    assert archive(report, allowing()) == archive(report, allowing())


def test_files_of_an_archive_can_be_read_by_its_owner():
    with zipfile.ZipFile(io.BytesIO(archive(BugReport(), allowing()))) as zipped:
        modes = {entry.external_attr >> 16 for entry in zipped.infolist()}

    assert modes == {0o600}


def test_newest_events_and_lines_stay():
    many = [line_of(dataclasses.replace(STEPPED, step=at)) for at in range(EVENTS_MAX + 5)]

    made = files(archive(BugReport(events=many, log=["line"] * (LOG_LINES_MAX + 5)), allowing()))

    kept = [json.loads(line)["step"] for line in made["events.jsonl"].splitlines()]
    assert kept == list(range(5, EVENTS_MAX + 5))
    assert len(made["log.txt"].splitlines()) == LOG_LINES_MAX


def test_files_of_a_report_have_a_limit():
    wide = json.dumps({"event": "note", "numbers": list(range(15_000))})

    made = files(archive(BugReport(events=[wide] * 60, log=["node " * 10**6]), allowing()))

    assert 0 < len(made["events.jsonl"]) <= FILE_CHARS_MAX
    assert len(made["log.txt"]) < 10_000


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "7",
        "[]",
        "null",
        '{"event":7}',
        '{"step":1}',
        "[" * 100_000,
        '{"event":"' + "x" * 200_000,
    ],
    ids=repr,
)
def test_line_that_is_no_event_is_passed_over(line):
    made = files(archive(BugReport(events=[line[:200_000], line_of(STEPPED)]), allowing()))

    assert len(made["events.jsonl"].splitlines()) == 1


def test_a_deep_event_ends_in_an_ellipsis():
    deep: object = "node"
    for _ in range(50):
        deep = [deep]

    made = files(archive(BugReport(events=[json.dumps({"event": "note", "of": deep})]), allowing()))

    assert LEFT_OUT in made["events.jsonl"]
    assert "node" not in made["events.jsonl"]
