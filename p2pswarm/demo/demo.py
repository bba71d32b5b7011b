"""The demo: starts the processes, watches the trainer, kills servers, and sums up.

It learns of the run only what the trainer process prints, one JSON object a line, and
touches the servers only by starting and killing them, as fate would.

Units:   seconds.
Errors:  Unusable when a node cannot start; RunEnded when the run fails.
"""

import asyncio
import json
import re
import tempfile
import time
from pathlib import Path
from random import Random

from rich.console import Console
from rich.live import Live
from rich.table import Table

from p2pswarm.demo.kills import Kills
from p2pswarm.demo.options import Options, bootstrap_settings, server_settings, trainer_settings
from p2pswarm.demo.plot import draw
from p2pswarm.demo.processes import DemoProcess, DemoProcesses, demo_processes
from p2pswarm.errors import RunEnded, Unusable
from p2pswarm.flow.exception_group import cause_of
from p2pswarm.progress.events import Note, Started, Stepped, from_line
from p2pswarm.progress.history import RunHistory
from p2pswarm.progress.lines import LineFormat
from p2pswarm.progress.page import page

TITLE = "p2pswarm demo"
LOOK_S = 0.5  # between two looks whether a server has ended by itself
RESTARTS_MAX = 3  # servers that end unasked; more means that something is wrong with this machine

UNUSABLE = 2  # a node's exit code for what its user can mend


class Demo:
    """One run of it."""

    def __init__(self, options: Options, console: Console, processes: DemoProcesses) -> None:
        self._options = options
        self._console = console
        self._processes = processes
        self._history = RunHistory()
        self._lines = LineFormat()
        self._kills = Kills(options.steps, options.kill_every, Random(options.steps))
        self._servers: dict[str, DemoProcess] = {}
        self._started = 0
        self._unasked = 0
        self._bootstrap = ""
        self._begun_s = time.monotonic()
        self._ready_s: float | None = None
        self._spare_asked = False
        self._tasks: asyncio.TaskGroup

    async def run(self) -> RunHistory:
        """From the first process to the last event of the run."""
        first = await self._processes.start("bootstrap", bootstrap_settings())
        line = await first.line_with("--bootstrap")
        self._bootstrap = re.findall(r"--bootstrap (\S+)", line)[0]
        trainer = await self._processes.start(
            "trainer", trainer_settings(self._bootstrap, self._options)
        )
        live = Live(console=self._console, auto_refresh=False, transient=True)
        watched = self._console.is_terminal
        async with asyncio.TaskGroup() as self._tasks:
            readers = [self._tasks.create_task(_drain(first))]
            for _ in range(self._options.stages * self._options.replicas):
                await self._add_server()
            readers.append(self._tasks.create_task(self._watch_servers()))
            if watched:
                live.start()
            try:
                await self._follow(trainer, live if watched else None)
            finally:
                live.stop()
            await self._processes.leave()
            for reader in readers:
                reader.cancel()
        return self._history

    @property
    def ready_s(self) -> float:
        """From the start of the demo to the first step."""
        return self._ready_s if self._ready_s is not None else 0.0

    async def _follow(self, trainer: DemoProcess, live: Live | None) -> None:
        """Take in the trainer's events until the run is over."""
        while self._history.ended is None:
            line = await trainer.line()
            if line is None:
                words = trainer.last_words()
                if await trainer.os_process.wait() == UNUSABLE:
                    raise Unusable(words.removeprefix("error: "))
                raise RunEnded(f"the trainer ended early: {words}")
            if not line.startswith("{"):
                continue  # its words for people
            event = from_line(line)
            if isinstance(event, Started):
                self._ready_s = time.monotonic() - self._begun_s
            self._history.told(event)
            if live:
                live.update(page(self._history, self._options.steps, TITLE), refresh=True)
            elif text := self._lines.told(event):
                self._console.print(text, highlight=False, soft_wrap=True)
            if isinstance(event, Stepped):
                await self._maybe_kill()

    async def _maybe_kill(self) -> None:
        if not self._kills.due(self._history.step):
            return
        victim = self._kills.victim(self._history)
        if victim is None or victim not in self._servers:
            if self._options.replicas == 1 and not self._spare_asked:
                self._spare_asked = True
                self._say("each server is needed: a spare one is started before one is killed")
                await self._add_server()
            return
        process = self._servers.pop(victim)
        process.kill()
        self._history.killed()
        self._kills.done(self._history.step)
        self._spare_asked = False
        self._say(f"KILLED server {victim} (SIGKILL); another is started")
        await self._add_server()

    async def _add_server(self) -> None:
        self._started += 1
        process = await self._processes.start(
            f"server-{self._started}", server_settings(self._bootstrap)
        )
        self._tasks.create_task(self._meet(process))

    async def _meet(self, process: DemoProcess) -> None:
        """Learn a server's id from its first words, and leave no line of it unread."""
        while (line := await process.line()) is not None:
            if found := re.match(r"peer (\S+)", line):
                self._servers[found[1]] = process

    async def _watch_servers(self) -> None:
        """Replace servers that end by themselves; too many are the end of the demo."""
        while True:
            await asyncio.sleep(LOOK_S)
            for name, process in list(self._servers.items()):
                if process.os_process.returncode is not None and self._history.ended is None:
                    del self._servers[name]
                    self._unasked += 1
                    self._say(f"server {name} ended by itself: {process.last_words()}")
                    if self._unasked > RESTARTS_MAX:
                        raise RunEnded(f"servers end by themselves: {process.last_words()}")
                    await self._add_server()

    def _say(self, text: str) -> None:
        note = Note(self._history.seconds, text)
        self._history.told(note)
        if not self._console.is_terminal:
            self._console.print(self._lines.told(note), highlight=False, soft_wrap=True)


async def _drain(process: DemoProcess) -> None:
    """Read a pipe that nobody needs, so that it never fills."""
    while await process.line() is not None:
        pass


async def demo(options: Options, console: Console) -> int:
    """Run it whole; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="p2pswarm-demo-") as folder:
        async with demo_processes(Path(folder)) as processes:
            whole = Demo(options, console, processes)
            try:
                history = await whole.run()
            except ExceptionGroup as group:
                raise cause_of(group) from None
    ended = history.ended
    assert ended is not None
    if options.json:
        options.json.write_text(json.dumps(summary(history, whole.ready_s)) + "\n")
    if history.steps:
        title = (
            f"{options.stages} stages of {options.replicas} servers, one machine: "
            "a byte-level transformer learns "
            + ("Python's library" if options.data is None else options.data.name)
        )
        draw(history, options.plot, title)
        console.print(f"picture: {options.plot}", highlight=False)
    _print_summary(history, whole.ready_s, console)
    if ended.failed:
        raise RunEnded(ended.reason)
    if ended.counts.asked != ended.counts.counted:
        raise RunEnded(f"{ended.counts.asked - ended.counts.counted} microbatches were not counted")
    return 0


def summary(history: RunHistory, ready_s: float) -> dict[str, object]:
    """What `--json` writes."""
    counts = history.counts
    return {
        "held_out": [[p.seconds, p.step, p.nats_per_byte] for p in history.held_out],
        "tokens_per_s": history.ended.tokens_per_s if history.ended else 0.0,
        "steps": history.step,
        "microbatches": {
            "asked": counts.asked,
            "counted": counts.counted,
            "replayed": counts.replayed,
        },
        "kills": len(history.kills),
        "seconds_to_ready": ready_s,
    }


def _print_summary(history: RunHistory, ready_s: float, console: Console) -> None:
    assert history.ended is not None
    counts = history.counts
    table = Table(box=None, show_header=False, padding=(0, 2))
    table.add_row("steps", str(history.step))
    table.add_row(
        "microbatches",
        f"{counts.asked} asked, {counts.counted} counted in every stage, "
        f"{counts.replayed} replayed",
    )
    table.add_row("servers killed", str(len(history.kills)))
    if history.held_out:
        first, last = history.held_out[0], history.held_out[-1]
        table.add_row(
            "held-out loss",
            f"{first.nats_per_byte:.3f} -> {last.nats_per_byte:.3f} nats/byte "
            f"in {last.seconds:.0f} s",
        )
    table.add_row("throughput", f"{history.ended.tokens_per_s:,.0f} tokens/s")
    table.add_row("ready after", f"{ready_s:.1f} s")
    console.print(table, highlight=False)
