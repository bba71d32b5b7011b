"""What a page and a log cost a run, how fast a page is, what it weighs, and what an attack brings.

    python bench/page.py --json page.json

One run of 20 emulated servers on this host: its trainer is in this process, with the page and the
log; the servers and the viewers are two others. In turn the run has a page with 16 viewers and a
log, or neither; and a page alone, attacked or not. Each pair of turns gives a ratio of steps a
second, and the answer is the median.

The browser's rows need Chromium and playwright; without them they are null.
"""

import argparse
import asyncio
import contextlib
import importlib
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from p2pswarm.base.ids import Address
from p2pswarm.net.crypto.key_file import identity_from
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.node import train
from p2pswarm.node.page import served
from p2pswarm.node.progress.event_hub import EventHub
from p2pswarm.node.progress.event_log import EventFiles, EventLog
from p2pswarm.node.run.run_entry import enter_run
from p2pswarm.node.stack.node_page import page_link
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.progress.event_lines import EventLine, EventNumbers
from p2pswarm.progress.events import (
    Begun,
    Departure,
    Event,
    Joined,
    Left,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Serving,
    Started,
    Stepped,
)
from p2pswarm.settings.config import BalanceConfig, BatchConfig, ModelConfig, RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.train_config import TrainConfig
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.page_server import FILE_TYPES, FILES
from p2pswarm.web.run_page import RunPage

HERE = Path(__file__).parent
SERVERS, STAGES, VIEWERS = 20, 10, 16  # two a stage, so that sums take few messages
MICROBATCHES = 4
FORWARD_S = 0.002  # all servers are one process on half a core: some two steps a second
TOKEN = "the-token-of-a-bench-of-one-host"
FLOOD_PER_S = 100_000
DAY_STEPS = 86_400


def quiet(_: object) -> None:
    """Say nothing."""


class Turn(NamedTuple):
    """What was seen in one turn."""

    rate_per_s: float
    """Steps."""
    busy: float
    """Share of a processor that this process takes: trainer, page and log, not their servers."""


class Turns:
    """The steps of a run, in turns."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []

    def on_event(self, event: Event) -> None:
        """Take an event of the run."""
        if isinstance(event, Stepped):
            self.ends_s.append(time.monotonic())

    async def turn(self, seconds: float) -> Turn:
        """Look on for so long, after a moment in which the change settles.

        The rate is that of whole steps, from the end of one to that of another: a step more or
        less in a turn would be a twentieth of it.
        """
        await asyncio.sleep(1.0)
        self.ends_s.clear()
        begun, busy = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        took_s, busy_s = time.monotonic() - begun, time.process_time() - busy
        steps = len(self.ends_s) - 1
        rate_per_s = steps / (self.ends_s[-1] - self.ends_s[0]) if steps > 0 else 0.0
        return Turn(rate_per_s, busy_s / took_s)


@contextlib.asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[tuple[EventHub, Turns]]:
    """A run that goes on while this block lasts."""
    (folder / "text.txt").write_text("a text that nobody learns\n" * 20_000)
    run = RunConfig(
        name="page",
        steps=10**6,
        stages=STAGES,
        emulated=True,
        model=ModelConfig(d_model=64, heads=4, layers=STAGES, sequence_length=64),
        batch=BatchConfig(rows=1, microbatches=MICROBATCHES),
        balance=BalanceConfig(rule="off"),
    )
    config = NodeConfig(
        role="trainer",
        listen="127.0.0.1:0",
        run=run,
        train=TrainConfig(data=folder / "text.txt", weights=None, cache=folder / "cache"),
    )
    turns = Turns()
    with identity_from(None) as identity:
        prepared = await asyncio.to_thread(train.prepare, config, identity, quiet)
        async with open_stack(prepared.config, identity) as stack:
            entry = await enter_run(stack, prepared.text, quiet)
            hub = EventHub(EventNumbers("page", identity.peer_id.short, time.time))

            def tell(event: Event) -> None:
                turns.on_event(event)
                hub.tell(event)

            at = str(stack.endpoint.contact.address)
            servers = subprocess.Popen(  # noqa: ASYNC220 - this bench alone waits
                [sys.executable, HERE / "page_swarm.py", at, str(SERVERS), str(FORWARD_S)],
                stdin=subprocess.PIPE,
            )
            try:
                async with train.open_trainer(stack, prepared.corpus, tell, entry) as trainer:
                    training = asyncio.get_running_loop().create_task(trainer.run())
                    await all_there(hub, turns)
                    await asyncio.sleep(3.0)
                    yield hub, turns
                    training.cancel()
            finally:
                servers.kill()
                servers.wait()


async def all_there(hub: EventHub, turns: Turns) -> None:
    """Wait until every server has been seen, and a step was done."""
    while not turns.ends_s or len(hub.view.servers.rows(time.time())) < SERVERS:  # noqa: ASYNC110
        await asyncio.sleep(0.5)


class Watchers:
    """The process of viewers and attackers."""

    def __init__(self, host: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "page_viewers.py", host, str(port), TOKEN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    async def do(self, what: str) -> None:
        """Begin something else."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        await asyncio.to_thread(self._process.stdout.readline)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


async def flood(page: RunPage, stamp: Callable[[Event], EventLine]) -> None:
    """A member whose events are 100,000 a second."""
    loop, told = asyncio.get_running_loop(), stamp(Note("a member says something again"))
    due_s = loop.time()
    while True:
        for _ in range(FLOOD_PER_S // 100):
            page.on_line(told, loop.time())
        due_s = max(due_s + 0.01, loop.time() - 0.1)
        await asyncio.sleep(max(0.0, due_s - loop.time()))


async def costs(pairs: int, seconds: float) -> dict[str, Any]:
    """The ratios of a run with a page and without, and of one that is attacked."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with swarm(folder) as (hub, turns):
            loop = asyncio.get_running_loop()
            page = RunPage(NodeHealth("trainer", loop.time()), time.time)
            page.view = hub.view
            async with served(page, [free()], TOKEN) as address:
                watchers = Watchers(address.host, address.port)
                log = EventLog(EventFiles(folder / "run.events.jsonl"))
                log.start()
                found: dict[str, list[Turn]] = {"plain": [], "shown": [], "attacked": []}

                async def turn(kind: str) -> None:
                    with contextlib.ExitStack() as ends:
                        if kind != "plain":
                            ends.callback(hub.listen(lambda told: page.on_line(told, loop.time())))
                            ends.callback(hub.listen(log.on_event))
                            await watchers.do(f"view {VIEWERS}")
                        if kind == "attacked":
                            await watchers.do("attack")
                            flooding = loop.create_task(flood(page, hub.numbers.stamp))
                            ends.callback(flooding.cancel)
                        found[kind].append(await turns.turn(seconds))
                        await watchers.do("nothing")

                try:
                    order = list(found)
                    for _ in range(pairs):
                        for kind in order:
                            await turn(kind)
                        order.reverse()  # what the machine does by and by costs all alike
                finally:
                    watchers.end()
                    log.close()
    return {
        "servers": SERVERS,
        "viewers": VIEWERS,
        "pairs": pairs,
        "steps_per_s": statistics.median(turn.rate_per_s for turn in found["plain"]),
        "page_and_log": ratio(found["shown"], found["plain"]),
        "attacked": ratio(found["attacked"], found["shown"]),
        "busy": {kind: statistics.median(one.busy for one in each) for kind, each in found.items()},
    }


def ratio(with_it: list[Turn], without: list[Turn]) -> dict[str, float]:
    """The median of the pairs' ratios, and its quartiles."""
    pairs = zip(with_it, without, strict=True)
    found = sorted(a.rate_per_s / b.rate_per_s for a, b in pairs if b.rate_per_s)
    low, _, high = statistics.quantiles(found, n=4) if len(found) > 1 else (found * 3)
    return {"ratio": statistics.median(found), "low": low, "high": high}


def free() -> Address:
    """Any free port of this machine alone."""
    return Address("127.0.0.1", 0)


def begun(servers: int = SERVERS) -> list[Event]:
    """How a run of so many servers begins."""
    each = [(f"peer{number}", number % STAGES, f"machine-{number}") for number in range(servers)]
    return [
        Begun(
            "page",
            "trainer",
            "attic",
            "0.1.0",
            steps=DAY_STEPS,
            stages=STAGES,
            microbatches=20,
            rows=1,
            sequence_length=64,
        ),
        *(Joined(*one) for one in each),
        *(Serving(*one) for one in each),
        Started(1),
    ]


def stepped(step: int) -> Stepped:
    counts = MicrobatchCounts(20 * step, 20 * step, step // 20)
    return Stepped(
        step,
        2.0,
        900.0,
        1e-3,
        1.0,
        counts,
        took_s=1.0,
        equal=20,
        compared=20,
        height=step,
        head="9f3a",
    )


def peers() -> Peers:
    lines = (
        PeerLine(f"peer{n}", n % STAGES, True, 1, 2.0, direct=5, forward_s=0.1)
        for n in range(SERVERS)
    )
    return Peers(tuple(lines))


def day_bytes() -> int:
    """By how much memory grows on the server's side in a day, with a step a second."""
    at = 1_764_000_000.0
    page = RunPage(NodeHealth("trainer", 0.0), lambda: at)
    numbers = EventNumbers("run", "k7f2", lambda: at)

    def tell(event: Event) -> None:
        told = numbers.stamp(event)
        page.view.on_event(told)
        page.on_line(told, at)

    for event in begun():
        tell(event)
    for step in range(1, 200):
        tell(stepped(step))
    before = rss_bytes()
    for step in range(200, DAY_STEPS):
        at += 1.0
        tell(stepped(step))
        tell(peers())
        if step % 30 == 0:
            tell(Note(f"something that people read, number {step}"))
        if step % 300 == 0:
            server = f"peer{step % SERVERS}"
            tell(Left(server, step % STAGES, Departure.LOST, "no answer for 2.1 s", 3, "machine"))
            tell(Joined(server, step % STAGES, "machine"))
            tell(Serving(server, step % STAGES, "machine"))
        page.newest_view(at)
    return rss_bytes() - before


def rss_bytes() -> int:
    """The memory of this process that is not on disk."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def in_browser() -> dict[str, float] | None:
    """How fast a real browser shows a page, a lost server and a stall; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        tools = importlib.import_module("playwright.async_api")
    except ImportError:
        return None
    if chromium is None:
        return None
    loop = asyncio.get_running_loop()
    page = RunPage(NodeHealth("trainer", loop.time()), time.time)
    numbers = EventNumbers("run", "k7f2", time.time)

    def tell(*events: Event) -> None:
        for event in events:
            told = numbers.stamp(event)
            page.view.on_event(told)
            page.on_line(told, loop.time())

    async with served(page, [free()], TOKEN) as address, tools.async_playwright() as run:
        browser = await run.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tell(*begun(), peers())
        for step in range(1, 6):
            await asyncio.sleep(1.0)
            tell(stepped(step))
        tab = await browser.new_page()
        asked_s = time.monotonic()
        await tab.goto(page_link(address, TOKEN))
        await tab.locator("#top", has_text="page").wait_for()
        first_s = time.monotonic() - asked_s
        paint_s = await tab.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        )
        tell(stepped(6))
        lost_s = time.monotonic()
        tell(Left("peer3", 1, Departure.LOST, "no answer for 2.1 s", 3, "machine-3"))
        await tab.locator(".gone").wait_for()
        lost_s = time.monotonic() - lost_s
        tell(stepped(7))
        committed_s = time.monotonic()
        await tab.locator("#top", has_text="stands still").wait_for()
        stall_s = time.monotonic() - committed_s - page.view.pace.stall_s
        await browser.close()
    return {
        "first_paint_s": paint_s,
        "run_shown_s": first_s,
        "lost_shown_s": lost_s,
        "stall_named_s": stall_s,
    }


async def measured(pairs: int, seconds: float) -> dict[str, Any]:
    """All rows."""
    sizes = {name: (FILES / name).stat().st_size for name in FILE_TYPES}
    day = await asyncio.to_thread(day_bytes)
    browser = await in_browser()
    cost = await costs(pairs, seconds) if pairs else None
    return {"bytes": sum(sizes.values()), "day_bytes": day, "browser": browser, "cost": cost}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=12, help="turns of each kind; 0: none")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    flags = parser.parse_args()
    found = run_loop(measured(flags.pairs, flags.seconds))
    text = json.dumps(found, indent=1)
    print(text)
    if flags.json:
        flags.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
