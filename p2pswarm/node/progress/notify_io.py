"""Tells a run's owner of alerts by a command or a URL that the owner has set.

One alert at a time, on a task of its own: a command that hangs, or a service that is down, costs
the alert and a line, and never holds up training. What peers said is in no argument of the command.
"""

import asyncio
import contextlib
import importlib
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.base.tasks import OwnedTasks
from p2pswarm.progress.alerts import Alert, Alerts
from p2pswarm.progress.events import Event
from p2pswarm.progress.printable import printable
from p2pswarm.settings.limits import is_web

SEND_S = 20.0  # for a command to end, or a service to answer
LAST_S = 5.0  # for what is left when the trainer ends
LOOK_S = 0.05  # at a command that runs
KILLED_S = 0.5  # the loop waits for so long: one of another user, or of a dead disk, may stay
WAITING_MAX = 16  # alerts that wait to be sent; there are six kinds, each once in ten minutes
NAMES = "event", "run", "id", "step", "text"
"""The fields that a command has in its environment, too."""
OK_BELOW = 400  # an HTTP status that is no error

Notify = str | tuple[str, ...]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlertSource:
    """Which run an alert is about."""

    run_name: str
    run: str
    """Its id, in hexadecimal."""


def command_of(notify: Notify) -> list[str]:
    """The words of a command; they are never given to a shell."""
    program, *words = shlex.split(notify) if isinstance(notify, str) else notify
    return [os.path.expanduser(program), *words]  # noqa: PTH111 - a name may be no path


def try_notify(notify: Notify) -> None:
    """Raise Unusable for a command that is not on this machine; nothing is run."""
    if not notify or (isinstance(notify, str) and is_web(notify)):
        return
    program = command_of(notify)[0]
    if shutil.which(program) is None:
        raise Unusable(
            f"train.notify: {program!r:.80} is no program that can be run here: install it, name "
            "its path, or set a URL"
        )


@contextlib.asynccontextmanager
async def notified(
    notify: Notify, source: AlertSource, tell: Callable[[Event], None], last_s: float = LAST_S
) -> AsyncIterator[Callable[[Event], None]]:
    """Give `tell`; what its events wake the owner for is sent while this block lasts.

    `last_s`: how long its end waits for what is still to be sent.
    """
    if not notify:
        yield tell
        return
    sender, tasks = AlertSender(notify, source), OwnedTasks()
    tasks.spawn(sender.run())

    def both(event: Event) -> None:
        sender.on_event(event)
        tell(event)

    try:
        yield both
    finally:
        await sender.finish(last_s)
        await tasks.close()


class AlertSender:
    """Sends alerts in their order; too many at once are dropped with a line."""

    def __init__(self, notify: Notify, source: AlertSource, send_s: float = SEND_S) -> None:
        """`send_s`: how long a command or a service may take."""
        self._notify, self._source = notify, source
        self._send_s = send_s
        self._alerts = Alerts()
        self._waiting: deque[Alert] = deque()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed = ""
        """What was said last of a failure: the same is not said again."""

    def on_event(self, event: Event) -> None:
        """Take an event of the run."""
        self._alerts.on_event(event, asyncio.get_running_loop().time())
        self._changed.set()
        self._idle.clear()  # until `run` has looked

    async def finish(self, last_s: float) -> None:
        """Wait for so long at most until the last alerts are sent."""
        self._changed.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(last_s):
                await self._idle.wait()
                return
        log.warning("train.notify: the last message is not sent: it took more than %g s", last_s)

    async def run(self) -> None:
        """Send alerts as they come; until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            due_s = self._alerts.next_deadline_s()
            if due_s is not None and clock() >= due_s:
                self._alerts.on_deadline(clock())
            self._take()
            if self._waiting:
                await self._send(self._waiting.popleft())
                continue
            self._idle.set()
            due_s = self._alerts.next_deadline_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._changed.wait()

    def _take(self) -> None:
        for alert in self._alerts.drain():
            if len(self._waiting) < WAITING_MAX:
                self._waiting.append(alert)
            else:
                self._say(f"{WAITING_MAX} messages wait, and {alert.kind.value!r} is dropped")

    async def _send(self, alert: Alert) -> None:
        fields = fields_of(alert, self._source)
        try:
            async with asyncio.timeout(self._send_s):
                if isinstance(self._notify, str) and is_web(self._notify):
                    failure = await post(self._notify, fields)
                else:
                    failure = await run_command(command_of(self._notify), fields)
        except TimeoutError:
            failure = f"it took more than {self._send_s:g} s, and was ended"
        if failure:
            self._say(f"the message {alert.kind.value!r} was not taken: {failure}")
        else:
            self._failed = ""

    def _say(self, text: str) -> None:
        if text != self._failed:
            self._failed = text
            log.warning("train.notify: %s", printable(text))


def fields_of(alert: Alert, source: AlertSource) -> dict[str, object]:
    """What an owner is told, as JSON; `content` is `text` for services that look there."""
    return {
        "event": alert.kind.value,
        "run": source.run_name,
        "id": source.run,
        "step": alert.step,
        "text": f"{source.run_name}: {alert.text}",
        "content": f"{source.run_name}: {alert.text}",
    }


async def run_command(command: Sequence[str], fields: dict[str, object]) -> str:
    """Run a command to its end, with the fields on its stdin; return why it failed, if so.

    It is ended when this is cancelled, with all that it has started.
    """
    names = {f"P2PSWARM_{name.upper()}": str(fields[name]) for name in NAMES}
    given = json.dumps(fields).encode() + b"\n"

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the owner's own setting, and no shell reads it
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | names,
            start_new_session=True,
        )

    try:
        process = await asyncio.to_thread(begin)
    except (OSError, ValueError) as error:
        return one_line(error)
    try:
        assert process.stdin is not None, "it is a pipe"
        with contextlib.suppress(OSError):  # it may end without reading
            process.stdin.write(given)  # less than any pipe holds
            process.stdin.close()
        while process.poll() is None:  # noqa: ASYNC110 - not each system's loop tells of its end
            await asyncio.sleep(LOOK_S)
    finally:
        _end(process)
    return f"exit code {process.returncode}" if process.returncode else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command, and what it has started; nothing if it is over."""
    if process.poll() is not None:
        return
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


async def post(url: str, fields: dict[str, object]) -> str:
    """Post the fields as JSON; return why that failed, if so."""
    http: Any = await asyncio.to_thread(importlib.import_module, "aiohttp")
    try:
        async with (
            http.ClientSession(trust_env=True) as session,
            session.post(url, json=fields, allow_redirects=False) as answer,
        ):
            return "" if answer.status < OK_BELOW else f"HTTP status {answer.status}"
    except (http.ClientError, OSError, ValueError) as error:
        return one_line(error) or type(error).__name__
