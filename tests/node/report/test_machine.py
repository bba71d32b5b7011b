"""Facts of a machine that a report may have, and the texts that it may not."""

import logging
import os
import platform
from pathlib import Path

import pytest

from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.node.report.bug_report import LOG_LINES_MAX
from p2pswarm.node.report.machine import facts, redaction, vocabulary
from p2pswarm.node.report.recent_log import RecentLog
from p2pswarm.settings.node_config import NodeConfig


def test_facts_are_versions_and_sizes():
    found = facts(["NVIDIA H200", "anna's own GPU", "NVIDIA\x1b[2J"])

    assert found["python"] == platform.python_version()
    assert found["processors"] == os.cpu_count()
    assert found["libraries"]["torch"].startswith("2.")
    assert found["gpus"] == ["NVIDIA H200", "another", "another"]
    assert platform.node() not in str(found)


def test_words_of_the_program_of_python_and_of_the_system_are_known():
    assert {"coordinator", "asyncio", "refused", "valueerror", "p2pswarm"} <= vocabulary()


@pytest.mark.parametrize("home", ["", "/", None])
def test_a_machine_without_a_home_has_no_tilde(home, monkeypatch):
    monkeypatch.delenv("HOME") if home is None else monkeypatch.setenv("HOME", home)

    assert redaction(None).home in ("", str(Path("~").expanduser()))
    assert redaction(None).home != "/"


def test_key_and_invitation_are_secrets(tmp_path):
    key, invitation = tmp_path / "key", tmp_path / "invitation"
    with identity_from(key):
        pass
    invitation.write_text("p2pswarm-invite-abc\n")

    secrets = redaction(NodeConfig(identity=key, invite=str(invitation))).secrets

    assert {key.read_bytes().hex(), "p2pswarm-invite-abc"} <= secrets


@pytest.mark.parametrize("invite", ["x" * 5_000, "p2pswarm-invite-abc", "/", "\0"])
def test_an_invitation_that_is_no_file_is_passed_over(invite):
    assert redaction(NodeConfig(invite=invite)).vocabulary


def record(text: str, *values: object, reason: Exception | None = None) -> logging.LogRecord:
    failure = (type(reason), reason, None) if reason else None
    return logging.LogRecord("p2pswarm.net", logging.WARNING, "", 1, text, values, failure)


def test_newest_lines_of_the_log_are_kept():
    recent = RecentLog()

    for at in range(LOG_LINES_MAX):
        recent.handle(record("line %d", at))
    recent.handle(record("failed\x1b[2J", reason=ValueError("a reason")))

    assert len(recent.lines) == LOG_LINES_MAX
    assert recent.lines[-1] == "ValueError: a reason"
    assert recent.lines[-2].endswith(" W p2pswarm.net: failed?[2J")
    assert recent.lines[-3].endswith(f" W p2pswarm.net: line {LOG_LINES_MAX - 1}")


def test_a_line_whose_values_do_not_fit_costs_that_line(capsys):
    recent = RecentLog()

    recent.handle(record("%d", "no number"))

    assert not recent.lines
    assert "TypeError" in capsys.readouterr().err
