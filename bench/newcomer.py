"""A newcomer's download from several members, across a wide-area network, beside training.

A trainer, `--donors` servers of one stage and a bootstrap node, every one a process through the
real command line, each on a host of its own in the WAN lab (`tests/wanlab`). When some steps are
done, a server joins. Measured:

* what came to it over the links from the donors, a second, from its first megabyte until it serves;
  as a share of the sum of these links' rates;
* the bytes that came, over the size of the state: what was fetched twice, gradients included;
* the steps' time while it downloads, against the steps before.

With `--kill-donor` one donor is killed when half of the state has come.

    python bench/newcomer.py --d-model 512 --layers 4 --json newcomer.json
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from swarm_processes import FIRST_SERVER, ROOT, Nodes, Run, RunFailed, Site, events, swarm

sys.path.insert(0, str(ROOT))

from p2pswarm.config import ModelConfig, RunConfig
from p2pswarm.progress.events import Event, Stepped
from p2pswarm.roles.weights_file import state_sizes
from tests.wanlab.lab import Lab, LabUnavailable
from tests.wanlab.link import Link

SERVE = '[serve]\nthreads = 1\ndevice = "cpu"\n'
SAMPLE_S = 0.1
BEGUN_BYTES = 1_000_000  # of the download: the link to the trainer carries less


@dataclass(frozen=True, slots=True)
class Measured:
    """One download."""

    state_bytes: int
    came_bytes: int
    """From the donors, as the links counted: headers and gradients included."""
    seconds: float
    share_of_links: float
    fetched: float
    """Bytes that came, over the size of the state."""
    step_before_s: float
    step_meanwhile_s: float
    """Median of the steps that ended while it downloaded; 0 if none did."""


class Steps:
    """When each step ended, on this machine's clock; fed by a thread."""

    def __init__(self, told: Iterator[Event]) -> None:
        self._ended: list[float] = []
        self.failed = ""
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()

    def until(self, count: int) -> None:
        """Wait until so many steps have ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) >= count or self.failed)
        if self.failed:
            raise RunFailed(self.failed)

    def lengths_s(self, begin_s: float, end_s: float) -> list[float]:
        """How long each step took that ended in between."""
        pairs = zip(self._ended, self._ended[1:], strict=False)
        return [b - a for a, b in pairs if begin_s <= b <= end_s]

    def _listen(self, told: Iterator[Event]) -> None:
        try:
            for event in told:
                if isinstance(event, Stepped):
                    with self._changed:
                        self._ended.append(time.monotonic())
                        self._changed.notify_all()
        except RunFailed as error:
            with self._changed:
                self.failed = str(error)
                self._changed.notify_all()


class Said:
    """Whether a node has said something yet."""

    def __init__(self, lines: Iterator[str], what: str) -> None:
        self.at_s: float | None = None
        threading.Thread(target=self._listen, args=(lines, what), daemon=True).start()

    def _listen(self, lines: Iterator[str], what: str) -> None:
        for line in lines:
            if what in line and self.at_s is None:
                self.at_s = time.monotonic()


def download(
    nodes: Nodes, came: Callable[[], int], state_bytes: int, patience_s: float, kill: str
) -> tuple[float, float, int]:
    """One server joins; when its download began and ended, and what came meanwhile."""
    gives_up_s = time.monotonic() + patience_s
    before = came()
    serving = Said(nodes.lines(nodes.start_server(SERVE)), "serving stage")
    begun_s, killed = 0.0, not kill
    while serving.at_s is None:
        if time.monotonic() > gives_up_s:
            raise RunFailed(f"the newcomer did not serve within {patience_s:g} s")
        if not begun_s and came() - before > BEGUN_BYTES:
            begun_s = time.monotonic()
        if not killed and came() - before > state_bytes / 2:
            nodes.kill(kill)
            killed = True
        time.sleep(SAMPLE_S)
    return begun_s, serving.at_s, came() - before


def measure(options: argparse.Namespace) -> Measured:
    """Train, let a server join, and look."""
    run = Run(
        name="newcomer",
        steps=100_000,
        stages=1,
        min_replicas=options.donors,
        d_model=options.d_model,
        layers=options.layers,
        sequence_length=64,
        rows=1,
        microbatches=options.microbatches,
    )
    model = ModelConfig(
        d_model=run.d_model, layers=run.layers, heads=max(1, run.d_model // 64), sequence_length=64
    )
    (size,) = state_sizes(RunConfig(stages=1, model=model))
    newcomer = FIRST_SERVER + options.donors
    link = Link(rate_bits_per_s=options.rate_mbit * 1e6, delay_s=options.rtt_ms / 2e3)
    with Lab(newcomer + 1, link) as lab:
        print(lab.describe(), flush=True)

        def came() -> int:
            roads = [(FIRST_SERVER + i, newcomer) for i in range(options.donors)]
            return sum(count.wire_bytes for road, count in lab.counts().items() if road in roads)

        site = Site("wan", lab.address, lab.enter)
        with swarm(site, run, [SERVE] * options.donors, 2 * options.patience_s) as nodes:
            steps = Steps(events(nodes.lines("trainer")))
            steps.until(1 + options.steps)
            kill = "server 0" if options.kill_donor else ""
            joined_s = time.monotonic()
            begun_s, ended_s, bytes_ = download(nodes, came, size.nbytes, options.patience_s, kill)
            before = steps.lengths_s(0.0, joined_s)
            meanwhile = steps.lengths_s(begun_s, ended_s)
    seconds = ended_s - begun_s
    return Measured(
        state_bytes=size.nbytes,
        came_bytes=bytes_,
        seconds=seconds,
        share_of_links=bytes_ * 8 / seconds / (options.donors * options.rate_mbit * 1e6),
        fetched=bytes_ / size.nbytes,
        step_before_s=statistics.median(before),
        step_meanwhile_s=statistics.median(meanwhile) if meanwhile else 0.0,
    )


def main() -> int:
    """Measure, print, write."""
    options = _options()
    try:
        found = measure(options)
    except LabUnavailable as reason:
        print(reason)
        return 2
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    print(
        f"{found.state_bytes / 1e6:.0f} MB of state: {found.came_bytes / 1e6:.0f} MB came in "
        f"{found.seconds:.1f} s, {found.share_of_links:.2f} of the links, {found.fetched:.2f} of "
        f"the state; a step {found.step_before_s:.2f} s before, {found.step_meanwhile_s:.2f} s "
        "meanwhile"
    )
    if options.json:
        options.json.write_text(json.dumps(asdict(found)) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--donors", type=int, default=3)
    parser.add_argument("--rate-mbit", type=float, default=200.0, help="of each link")
    parser.add_argument("--rtt-ms", type=float, default=40.0)
    parser.add_argument("--d-model", type=int, default=512, help="1024 with 7 layers: 1 GB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=48, help="a step; 64 tokens each")
    parser.add_argument("--steps", type=int, default=3, help="before the server joins")
    parser.add_argument("--kill-donor", action="store_true", help="when half of the state is there")
    parser.add_argument("--patience-s", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
