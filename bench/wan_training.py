"""Training across a wide-area network, as a share of the same swarm on one machine's loopback.

A trainer, two stages of one server each and a bootstrap node, every one a process through the
real command line. First all on 127.0.0.1, then each on a host of its own in the WAN lab
(`tests/wanlab`), with the same run: same model, microbatches and steps. What the network takes
is the step's fill, drain and commit, some round trips each step, unless bandwidth or too short a
window add to it; so the share depends on how long a step computes. The lab's emulator runs on the
same processors and counts against the WAN.

Also: what the trainer's links carry for each microbatch, over the bytes of its activations
(those that pass from one stage to the next, as encoded, one way).

    python bench/wan_training.py --json wan_training.json
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pswarm.progress.events import Ended, Stepped, from_line  # noqa: E402 - found by the line above
from tests.wanlab.lab import Lab, LabUnavailable  # noqa: E402
from tests.wanlab.link import Link  # noqa: E402

TRAINER, BOOTSTRAP, FIRST_SERVER = 0, 1, 2
STAGES = 2
NODE = (sys.executable, "-m", "p2pswarm.node")
LEAVE_S = 6.0  # a node promises 5
BYTES_PER_NUMBER = {"raw": 4, "bf16": 2, "fp16": 2}


class RunFailed(RuntimeError):
    """The swarm did not train; the text is the last word of the process at fault."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where the processes run."""

    name: str
    address: Callable[[int], str]
    enter: Callable[[int], Sequence[str]]
    trainer_bytes: Callable[[], int]
    """What the trainer's links have carried so far, both ways; 0 where nobody counts."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    site: str
    tokens_per_s: float
    step_s: float
    trainer_bytes: float
    """A microbatch."""


class Nodes:
    """The processes of one swarm; all gone at the end of the block."""

    def __init__(self, site: Site, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self._all: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._all.values():
            node.terminate()
        for node in self._all.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(LEAVE_S)
        self.kill()
        for node in self._all.values():
            node.wait()
            for pipe in (node.stdin, node.stdout):
                assert pipe is not None
                pipe.close()

    def kill(self) -> None:
        """End all at once."""
        for node in self._all.values():
            node.kill()

    def start(self, name: str, host: int, settings: str) -> subprocess.Popen[str]:
        """A node on `host`, with these settings and what every node here has."""
        config = self._folder / f"{name}.toml"
        listen = f'listen = "{self._site.address(host)}:0"\nleave_at_eof = true\n'
        config.write_text(listen + settings)
        with self._log(name).open("wb") as stderr:
            self._all[name] = subprocess.Popen(
                [*self._site.enter(host), *NODE, "--config", str(config)],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
            )
        return self._all[name]

    def lines(self, name: str) -> Iterator[str]:
        """What a node says, until it ends; then RunFailed with its last word, if it failed."""
        node = self._all[name]
        assert node.stdout is not None
        yield from node.stdout
        if node.wait():
            words = self._log(name).read_text(errors="replace").strip().splitlines()
            raise RunFailed(f"{name} ended early: {words[-1] if words else 'without a word'}")

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def run_settings(options: argparse.Namespace) -> str:
    """The run, as the trainer's TOML has it."""
    codec = json.dumps(options.codec)
    data = json.dumps(sysconfig.get_path("stdlib"))
    return f"""
[train]
data = {data}
suffixes = [".py"]
progress = "json"
weights = ""
[run]
name = "wan training"
stages = {STAGES}
steps = {options.warmup_steps + options.steps}
[run.model]
d_model = {options.d_model}
layers = {options.layers}
heads = {max(1, options.d_model // 64)}
sequence_length = {options.sequence_length}
[run.batch]
microbatches = {options.microbatches}
rows = {options.rows}
window = {options.window}
evaluate_every = 0
[run.codecs]
activation = {codec}
gradient = {codec}
"""


def measure(site: Site, options: argparse.Namespace) -> Measured:
    """Train once; the first steps are not counted."""
    serve = '[serve]\nthreads = 1\ndevice = "cpu"\n'
    with tempfile.TemporaryDirectory() as folder, Nodes(site, Path(folder)) as nodes:
        late = threading.Timer(options.patience_s, nodes.kill)
        late.daemon = True
        late.start()
        nodes.start("bootstrap", BOOTSTRAP, 'role = "bootstrap"\n')
        address = first_match(nodes.lines("bootstrap"), r"at (\S+), ready")
        joining = f'bootstrap = ["{address}"]\n'
        nodes.start("trainer", TRAINER, joining + 'role = "trainer"\n' + run_settings(options))
        for i in range(STAGES):
            nodes.start(f"server {i}", FIRST_SERVER + i, joining + 'role = "stage"\n' + serve)
        try:
            return follow(nodes.lines("trainer"), site, options)
        finally:
            late.cancel()


def follow(lines: Iterator[str], site: Site, options: argparse.Namespace) -> Measured:
    """Read the trainer's events to the end of the run."""
    begun: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    for line in lines:
        with contextlib.suppress(ValueError):  # what a node says before its run is for people
            event = from_line(line)
            if isinstance(event, Ended) and event.failed:
                raise RunFailed(event.reason)
            if isinstance(event, Stepped):
                print(f"  {site.name}: step {event.step}, {event.seconds:.1f} s", flush=True)
                last = (event.seconds, site.trainer_bytes())
                if event.step == options.warmup_steps:
                    begun = last
    if begun is None or last is None or last == begun:
        raise RunFailed(f"the trainer ended before step {options.warmup_steps + 1}")
    seconds = last[0] - begun[0]
    microbatches = options.steps * options.microbatches
    tokens = microbatches * options.rows * options.sequence_length
    return Measured(
        site.name, tokens / seconds, seconds / options.steps, (last[1] - begun[1]) / microbatches
    )


def first_match(lines: Iterator[str], pattern: str) -> str:
    """The first group of `pattern` in the first line that has it."""
    for line in lines:
        if found := re.search(pattern, line):
            return found[1]
    raise RunFailed(f"no line matches {pattern}")


@contextlib.contextmanager
def far(options: argparse.Namespace) -> Iterator[Site]:
    """Every process on a host of its own."""
    link = Link(
        rate_bits_per_s=options.rate_mbit * 1e6, delay_s=options.rtt_ms / 2e3, loss=options.loss
    )

    def trainer_bytes() -> int:
        counts = lab.counts()
        return sum(count.wire_bytes for road, count in counts.items() if TRAINER in road)

    with Lab(FIRST_SERVER + STAGES, link) as lab:
        print(lab.describe(), flush=True)
        yield Site("wan", lab.address, lab.enter, trainer_bytes)


def main() -> int:
    """Measure, print, write."""
    options = _options()
    near = Site("localhost", lambda _: "127.0.0.1", lambda _: (), lambda: 0)
    runs: list[Measured] = []
    try:
        for _ in range(options.repeats):
            with far(options) as lab:
                runs += [measure(near, options), measure(lab, options)]
    except LabUnavailable as reason:
        print(reason)
        return 2
    except RunFailed as error:
        print(f"error: {error}")
        return 1

    by_site = {name: [run for run in runs if run.site == name] for name in ("localhost", "wan")}
    rates = {
        name: statistics.median(run.tokens_per_s for run in several)
        for name, several in by_site.items()
    }
    ratio = rates["wan"] / rates["localhost"]
    trainer_bytes = statistics.median(run.trainer_bytes for run in by_site["wan"])
    tokens = options.rows * options.sequence_length
    activation_bytes = tokens * options.d_model * BYTES_PER_NUMBER[options.codec]

    table = Table("swarm on", "tokens/s", "s a step", box=None)
    for run in runs:
        table.add_row(run.site, f"{run.tokens_per_s:.0f}", f"{run.step_s:.2f}")
    Console().print(table)
    print(f"ratio {ratio:.3f}")
    print(
        f"the trainer's links: {trainer_bytes:.0f} bytes a microbatch, "
        f"{trainer_bytes / activation_bytes:.2%} of {activation_bytes} bytes of activations"
    )
    if options.json:
        figures = {
            "ratio": ratio,
            "swarm_tokens_per_s": rates["wan"],
            "plain_tokens_per_s": rates["localhost"],
            "d_model": options.d_model,
            "trainer_bytes_per_microbatch": trainer_bytes,
            "activation_bytes": activation_bytes,
        }
        options.json.write_text(json.dumps(figures) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate-mbit", type=float, default=200.0)
    parser.add_argument("--rtt-ms", type=float, default=100.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--rows", type=int, default=2, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=32, help="a step")
    parser.add_argument("--window", type=int, default=16, help="microbatches in flight")
    parser.add_argument("--steps", type=int, default=2, help="measured, after the warm-up")
    parser.add_argument("--warmup-steps", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2, help="of both; medians count")
    parser.add_argument("--codec", choices=BYTES_PER_NUMBER, default="bf16")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
