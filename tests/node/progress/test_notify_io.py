"""Alerts reach a real program and a real web server; what hangs or fails costs a line."""

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest
from aiohttp import web

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress import notify_io
from p2pswarm.node.progress.notify_io import AlertSource, command_of, notified, try_notify
from p2pswarm.progress.alerts import Alert, AlertKind
from p2pswarm.progress.events import CheckpointFailed, Ended, MicrobatchCounts

SOURCE = AlertSource("my run", "ab" * 16)
FAILED = CheckpointFailed(7, "the disk is full")
ENDED = Ended(9, "all steps are done", False, 1.0, MicrobatchCounts(9, 9, 0))


HANGS = "import threading; threading.Event().wait()"


async def told(notify, *events, last_s: float = notify_io.LAST_S) -> list[object]:
    """What passes on, and what is sent, is over when this returns."""
    passed: list[object] = []
    async with notified(notify, SOURCE, passed.append, last_s) as tell:
        for event in events:
            tell(event)
    return passed


def program(tmp_path, text: str) -> list[str]:
    """A command that runs these lines of Python."""
    path = tmp_path / "a program.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def test_a_command_gets_the_alert_in_its_environment_and_on_stdin(tmp_path):
    seen = tmp_path / "seen"
    command = program(
        tmp_path,
        "import json, os, sys\n"
        "names = ('EVENT', 'RUN', 'ID', 'STEP', 'TEXT')\n"
        "found = {name: os.environ['P2PSWARM_' + name] for name in names}\n"
        "whole = [found, json.load(sys.stdin), sys.argv[1:]]\n"
        f"open({str(seen)!r}, 'w').write(json.dumps(whole))\n",
    )

    passed = asyncio.run(told((*command, "a b", "; rm -rf /"), FAILED))

    environment, given, words = json.loads(seen.read_text())
    assert passed == [FAILED]
    assert environment == {
        "EVENT": "not-saved",
        "RUN": "my run",
        "ID": SOURCE.run,
        "STEP": "0",
        "TEXT": "my run: no checkpoint of step 7: the disk is full",
    }
    assert (given["event"], given["text"]) == ("not-saved", environment["TEXT"])
    assert words == ["a b", "; rm -rf /"]


def test_a_command_that_is_one_text_is_split_as_a_shell_would_and_run_without_one():
    assert command_of("mail -s 'my run' $HOME") == ["mail", "-s", "my run", "$HOME"]


def test_without_a_setting_nothing_stands_between():
    assert asyncio.run(told("", FAILED)) == [FAILED]


def test_a_command_that_fails_is_one_line(tmp_path, caplog):
    command = program(tmp_path, "import sys; sys.exit(3)")

    asyncio.run(told(tuple(command), FAILED))

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "train.notify: the message 'not-saved' was not taken: exit code 3"
    )


def test_a_command_that_hangs_is_ended_with_what_it_has_started(tmp_path, caplog):
    pids = tmp_path / "pids"
    command = program(
        tmp_path,
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HANGS!r}])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "child.wait()\n",
    )

    async def send() -> None:
        sender = notify_io.AlertSender(tuple(command), SOURCE, send_s=1.0)
        await sender._send(Alert(AlertKind.STALL, "it stands still", 3))  # the whole of one sending

    asyncio.run(send())

    assert "it took more than 1 s, and was ended" in caplog.text
    started, child = map(int, pids.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)
    while _lives(child):  # the kernel ends it a moment after it was killed
        pass


def test_a_command_that_may_not_be_ended_holds_up_nothing(tmp_path, monkeypatch, caplog):
    """One of sudo belongs to another user."""
    begun, end = [], notify_io._end

    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    def ended(process) -> None:
        begun.append(process)
        end(process)

    async def send() -> None:
        sender = notify_io.AlertSender(tuple(program(tmp_path, HANGS)), SOURCE, send_s=0.2)
        await sender._send(Alert(AlertKind.STALL, "it stands still", 3))

    monkeypatch.setattr(os, "killpg", refuse)
    monkeypatch.setattr(notify_io, "_end", ended)
    asyncio.run(send())

    assert "it took more than 0.2 s" in caplog.text
    (process,) = begun
    assert process.poll() is None
    process.kill()
    process.wait()


def _lives(pid: int) -> bool:
    """A process that was killed may wait for its parent, which is the first process here."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state not in ("Z", "X")


def test_a_run_that_ends_waits_only_a_moment_for_a_command_that_hangs(tmp_path, caplog):
    command = program(tmp_path, HANGS)

    assert asyncio.run(told(tuple(command), ENDED, last_s=0.2)) == [ENDED]

    assert "the last message is not sent" in caplog.text


def test_a_program_that_is_gone_is_one_line(tmp_path, caplog):
    asyncio.run(told((str(tmp_path / "nothing"),), FAILED))

    (record,) = caplog.records
    assert "No such file" in record.getMessage()


def test_a_program_that_is_not_here_is_refused_before_anything_begins():
    with pytest.raises(Unusable, match=r"train\.notify: 'no-such-program-here'"):
        try_notify("no-such-program-here --loud")

    try_notify(sys.executable)
    try_notify("https://example.org/hook")
    try_notify("")


async def served(answer_status: int, notify_path: str = "/hook") -> list[dict[str, object]]:
    """What a web server is posted, which answers so."""
    posted: list[dict[str, object]] = []

    async def hook(request: web.Request) -> web.Response:
        posted.append(await request.json())
        return web.Response(status=answer_status)

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        await told(f"http://127.0.0.1:{port}{notify_path}", FAILED, ENDED)
    finally:
        await runner.cleanup()
    return posted


def test_a_url_is_posted_json(caplog):
    posted = asyncio.run(served(204))

    assert [each["event"] for each in posted] == ["not-saved", "end"]
    assert posted[0]["content"] == posted[0]["text"]
    assert caplog.records == []


def test_a_service_that_refuses_again_and_again_is_one_line(caplog):
    asyncio.run(served(500))

    assert [record.getMessage() for record in caplog.records] == [
        "train.notify: the message 'not-saved' was not taken: HTTP status 500",
        "train.notify: the message 'end' was not taken: HTTP status 500",
    ]


def test_a_redirect_is_not_followed(caplog):
    asyncio.run(served(302))

    assert caplog.records == []


def test_a_service_that_is_not_there_is_one_line(caplog):
    asyncio.run(told("http://127.0.0.1:1/", FAILED))

    (record,) = caplog.records
    assert "was not taken" in record.getMessage()
    assert "\n" not in record.getMessage()


def test_too_many_alerts_at_once_are_dropped_with_a_line(caplog):
    async def fill() -> None:
        sender = notify_io.AlertSender(sys.executable, SOURCE)
        for number in range(notify_io.WAITING_MAX + 2):
            sender.on_event(Ended(number, "over", False, 1.0, MicrobatchCounts(0, 0, 0)))
        sender._take()  # nothing is sent meanwhile

    asyncio.run(fill())

    assert caplog.text.count("dropped") == 1
