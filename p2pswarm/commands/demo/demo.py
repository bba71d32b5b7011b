"""The demo: starts the processes, watches the trainer, kills servers, and sums up.

Errors:  Unusable when a node cannot start; RunEnded when the run fails.
"""

import asyncio
import json
import re
import signal
import tempfile
import time
from pathlib import Path
from random import Random

from rich.console import Console
from rich.live import Live
from rich.table import Table

from p2pswarm.base.errors import RunEnded, Unusable
from p2pswarm.base.exception_group import cause_of
from p2pswarm.base.exit_codes import UNUSABLE, code_of
from p2pswarm.base.files import write_answer, write_target
from p2pswarm.base.problems import Problems
from p2pswarm.commands.demo.options import (
    SLOW_SERVERS,
    Options,
    bootstrap_settings,
    server_settings,
    trainer_settings,
)
from p2pswarm.commands.demo.processes import DemoProcess, DemoProcesses, demo_processes
from p2pswarm.commands.demo.summary import (
    draw,
    draw_moves,
    failure,
    rows,
    summary,
    title,
)
from p2pswarm.commands.demo.supervisor import (
    GiveUp,
    Kills,
    KillServer,
    Remark,
    StartServer,
    Supervisor,
)
from p2pswarm.commands.picture import picture_format
from p2pswarm.net.os.event_loop import signals_handled
from p2pswarm.node.console_end import watch_console_end
from p2pswarm.node.progress.output import draws, shown_time, terminal, time_of
from p2pswarm.node.run.run_text import read_corpus
from p2pswarm.node.shutdown import LEAVING, ending_signals
from p2pswarm.progress.event_lines import EventLine, EventNumbers, from_line
from p2pswarm.progress.events import Note, Started
from p2pswarm.progress.history import RunHistory
from p2pswarm.progress.page import LineFormat, page
from p2pswarm.progress.view import RunView
from p2pswarm.settings.parser import load

TITLE = "p2pswarm demo"
NOWHERE = "127.0.0.1:1"  # settings of a trainer name a node, and this one is never started


class Demo:
    """One run of the demo.

    It knows of the run only what the trainer process prints, one JSON object in each line. It
    starts and kills servers, and changes nothing else about them. `supervisor.py` decides what to
    do.
    """

    def __init__(self, options: Options, console: Console, processes: DemoProcesses) -> None:
        self._options = options
        self._console = console
        self._processes = processes
        kills = Kills(options.steps, options.kill_every, Random(options.steps))
        self._supervisor = Supervisor(options, kills)
        self._history = self._supervisor.history
        self._view = RunView()
        self._numbers = EventNumbers("", "demo", time.time)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._servers: dict[str, DemoProcess] = {}
        self._bootstrap = ""
        self._begun_s = time.monotonic()
        self._lines = LineFormat(self._begun_s)
        self.ready_s = 0.0
        """Seconds from the start of the demo to the first step."""
        self._tasks: asyncio.TaskGroup

    async def run(self) -> RunHistory:
        """Start the processes, and follow the run to its last event."""
        if draws(self._console):
            self._live.start()
        try:
            await self._run()
        finally:
            self._live.stop()
        return self._history

    async def _run(self) -> None:
        self._say("starting a node that the others join through")
        first = await self._processes.start("bootstrap", bootstrap_settings())
        line = await first.line_with("--bootstrap")
        self._bootstrap = re.findall(r"--bootstrap (\S+)", line)[0]
        servers = self._options.stages * self._options.replicas
        self._say(f"starting a trainer and {servers} servers: each loads PyTorch first")
        if self._options.uneven:
            self._say(f"{SLOW_SERVERS} are slow, and serve the last stage; nothing is computed")
        settings = trainer_settings(self._bootstrap, self._options)
        trainer = await self._processes.start("trainer", settings)
        async with asyncio.TaskGroup() as self._tasks:
            reader = self._tasks.create_task(_drain(first))
            self._supervisor.begin()
            await self._act()
            await self._follow(trainer)
            await self._processes.leave()
            reader.cancel()

    async def _follow(self, trainer: DemoProcess) -> None:
        """Follow the trainer's events until the run is over."""
        while self._history.ended is None:
            line = await trainer.line()
            if line is None:
                words = trainer.last_words()
                if await trainer.os_process.wait() == UNUSABLE:
                    raise Unusable(words.removeprefix("error: "))
                raise RunEnded(f"the trainer ended early: {words}")
            if not line.startswith("{"):
                continue  # a line for people
            told = from_line(line)
            if isinstance(told.event, Started):
                self.ready_s = time.monotonic() - self._begun_s
            self._supervisor.on_event(told.event)
            self._show(told)
            await self._act()

    async def _act(self) -> None:
        """Carry out the supervisor's actions."""
        for action in self._supervisor.actions():
            match action:
                case StartServer(name=name, slow=slow):
                    settings = server_settings(self._bootstrap, self._options, slow=slow)
                    process = self._servers[name] = await self._processes.start(name, settings)
                    self._tasks.create_task(self._attend(process))
                case KillServer(name=name):
                    self._servers[name].kill()
                case Remark(text=text):
                    self._say(text)
                case GiveUp(reason=reason):
                    raise RunEnded(reason)

    async def _attend(self, process: DemoProcess) -> None:
        """Learn a server's id from its first line, read all lines, and report its end."""
        while (line := await process.line()) is not None:
            if found := re.match(r"peer (\S+)", line):
                self._supervisor.on_peer(process.name, found[1])
        await process.os_process.wait()
        self._supervisor.on_server_end(process.name, process.last_words())
        await self._act()

    def _say(self, text: str) -> None:
        self._show(self._numbers.stamp(Note(text, seconds=self._history.seconds)))

    def _show(self, told: EventLine) -> None:
        """Draw the page again, or print the event's line."""
        self._view.on_event(told)
        if draws(self._console):
            drawn = page(self._view.to_json(time.time()), TITLE, time_of)
            self._live.update(drawn, refresh=True)
        elif text := self._lines.line(told.event, time.monotonic(), shown_time()):
            self._console.print(text, highlight=False, soft_wrap=True)


async def _drain(process: DemoProcess) -> None:
    """Read a pipe whose text is not needed, so that it never fills."""
    while await process.line() is not None:
        pass


def main(options: Options) -> int:
    """Run the demo; returns the exit code."""
    picture_format(options.plot)
    asked: list[int] = []
    try:
        # asyncio's own loop: that of a node starts no processes on Windows
        return asyncio.run(_interruptible(options, terminal(), asked))
    except asyncio.CancelledError:
        return code_of(asked[0])
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


async def _interruptible(options: Options, console: Console, asked: list[int]) -> int:
    """Run the demo; the first Ctrl-C ends it in order, the next at once. `asked` gets signals."""
    work = asyncio.current_task()
    assert work is not None

    def leave(number: int) -> None:
        asked.append(number)
        if len(asked) == 1:
            work.cancel()
            console.print(LEAVING)
        elif number == signal.SIGINT:
            work.cancel()  # it cancels the waiting, and the children are killed

    with signals_handled(asyncio.get_running_loop(), ending_signals(), leave):
        watch_console_end()
        return await demo(options, console)


async def demo(options: Options, console: Console) -> int:
    """Run the demo to its end and write its files; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="p2pswarm-demo-") as folder:
        check_text(options, Path(folder))
        async with demo_processes(Path(folder)) as processes:
            whole = Demo(options, console, processes)
            try:
                history = await whole.run()
            except ExceptionGroup as group:
                raise cause_of(group) from None
    lost = _write(options, history, whole.ready_s, console)
    _print_summary(history, whole.ready_s, console)
    if reason := failure(history):
        raise RunEnded(reason)
    if lost:
        raise Unusable("; ".join(lost))
    return 0


def check_text(options: Options, folder: Path) -> None:
    """Raise Unusable for text that the trainer would refuse; `folder` is for a file of settings."""
    if options.data is None:
        return
    settings = folder / "text.toml"
    settings.write_text(trainer_settings(NOWHERE, options), encoding="utf-8")
    read_corpus(load(settings))


def _write(options: Options, history: RunHistory, ready_s: float, console: Console) -> list[str]:
    """Write the figures and the picture; returns an error for each that failed."""
    text = json.dumps(summary(history, ready_s)) + "\n"
    kind = picture_format(options.plot)
    picture = draw_moves if options.uneven else draw
    problems = Problems()
    if options.json is not None:
        with problems.noted():
            console.print(f"figures: {write_answer(options.json, text)}", highlight=False)
    if history.steps:
        with problems.noted():
            written = write_target(
                options.plot,
                lambda place: picture(history, place, title(options), kind),
                replace=True,
            )
            console.print(f"picture: {written}", highlight=False)
    return problems.lines


def _print_summary(history: RunHistory, ready_s: float, console: Console) -> None:
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, figure in rows(history, ready_s):
        table.add_row(name, figure)
    console.print(table, highlight=False)
