"""Make the log of a small run, of which `make_page_pictures.py` makes the pictures of the page.

    python tests/make_page_log.py tests/web/small_run.events.jsonl

Real processes train the project's own texts: two stages of two servers. One server is killed,
another one comes, and one is stopped for a while. It takes two minutes.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1]
HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = ""
log = "run.events.jsonl"
price_limit = 5
budget = 1

[run]
name = "small"
stages = 2
steps = 400

[run.model]
d_model = 128
layers = 6
heads = 4
sequence_length = 128

[run.batch]
microbatches = 16
rows = 2
"""
SERVER = """
role = "stage"
name = "{name}"

[serve]
leave = "never"
price_per_hour = {price}
"""
SERVERS = {"cellar": 0.35, "garage": 0.2, "loft": 0.31, "shed": 0.12, "porch": 0.29}
"""Price an hour by name; the last one comes when another is gone."""
DEADLINE_S = 120.0


def events(log: Path) -> list[dict[str, object]]:
    """Return what stands in a log by now."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def until(log: Path, what: str, found: Callable[[dict[str, object]], bool]) -> None:
    """Wait until an event is in the log."""
    until_s = time.monotonic() + DEADLINE_S
    while not any(map(found, events(log))):
        if time.monotonic() > until_s:
            raise TimeoutError(f"{what} is not in {log}")
        time.sleep(0.2)
    print(what, flush=True)


@contextlib.contextmanager
def node(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """One process of the swarm, which ends with the block."""
    command = [sys.executable, "-m", "p2pswarm", *words, *HERE]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def stepped(step: int) -> Callable[[dict[str, object]], bool]:
    """Return what finds the end of a step."""
    return lambda event: event["event"] == "stepped" and event["step"] == step


def make(target: Path) -> None:
    """Train, kill, stop, and copy the trainer's log."""
    with contextlib.ExitStack() as blocks:
        folder = Path(blocks.enter_context(tempfile.TemporaryDirectory()))
        shutil.copytree(PROJECT / "docs", folder / "text", ignore=shutil.ignore_patterns("*.*g"))
        (folder / "run.toml").write_text(RUN)
        first = blocks.enter_context(node(folder, "node", "--name", "attic"))
        assert first.stdout is not None
        address = next(line for line in first.stdout if "127.0.0.1:" in line)
        address = "127.0.0.1:" + address.split("127.0.0.1:")[1].split()[0].rstrip(".,)")
        log = folder / "run.events.jsonl"

        def server(name: str) -> subprocess.Popen[str]:
            path = folder / f"{name}.toml"
            path.write_text(SERVER.format(name=name, price=SERVERS[name]))
            words = ("node", "--config", path.name, "--bootstrap", address)
            return blocks.enter_context(node(folder, *words))

        words = ("train", "run.toml", "--bootstrap", address, "--name", "attic")
        blocks.enter_context(node(folder, *words))
        *names, last = SERVERS
        servers = {name: server(name) for name in names}
        until(log, "step 25", stepped(25))
        servers["garage"].kill()
        server(last)
        until(log, "step 60", stepped(60))
        for name in ("cellar", "shed"):  # of which one has what the other waits for
            servers[name].send_signal(signal.SIGSTOP)
        until(log, "a stall", lambda event: event["event"] == "stalled")
        for name in ("cellar", "shed"):
            servers[name].send_signal(signal.SIGCONT)
        until(log, "its end", lambda event: event["event"] == "stallended")
        until(log, "step 80", stepped(80))
        shutil.copy(log, target)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
