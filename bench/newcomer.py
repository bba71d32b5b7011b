"""A newcomer's download from several members, across a wide-area network, beside training.

A trainer, `--donors` servers of one stage and a bootstrap node, every one a process through the
real command line, each on a host of its own in the WAN lab (`tests/wanlab`). When some steps are
done, a server joins. Measured:

* what came to it over the links from the donors, a second, from its first megabyte until it serves;
  as a share of the sum of these links' rates;
* the bytes that came, over the size of the state: what was fetched twice, gradients included;
* the time of the steps that it downloads in, against the steps before: the speed that training
  keeps. A newcomer receives what its stage reduces, too, so a step that it is there for may be
  longer for that reason;
* the processor time that the newcomer took, its start included;
* by how much the peak of a donor's memory rose above that of the steps before;
* how many processors all nodes and the lab kept busy, in the steps before it was started, and from
  then until the end of the step in which it began to serve.

**Training's speed needs a processor to spare.** All hosts of the lab share this machine. Where the
servers compute on it without a pause, whatever a newcomer's process does is taken from them, though
on a machine of its own it would take nothing; the ratio then says how many processors there are.
So `--gpu SECONDS` makes a microbatch's computing a wait, as for a host with a graphics card
(`waiting_node.py`). What is left in the ratio is what a newcomer costs the others: their links,
event loops, copies, encryption, hashes. Without it, the ratio is that of one machine for all.

With `--kill-donor` one donor is killed when half of the state has come. With `--kill-newcomer` the
newcomer itself is, and started again with the same `state` folder at once; bytes are then those of
both its lives, and seconds without the time between them in which nothing came. What its second
life did not take from the folder was missing, and is shown beside what came. If a step has ended in
between, all comes again; for one that ends later a reduced gradient comes, a third of the state. So
to see only what was missing, a step has to take longer than the download and two starts.

    python bench/newcomer.py --d-model 512 --layers 4 --json newcomer.json
    python bench/newcomer.py --d-model 512 --layers 4 --kill-newcomer --json restarted.json
    python bench/newcomer.py --d-model 1024 --layers 7 --gpu 10 --microbatches 12 --kill-newcomer
"""

import argparse
import contextlib
import json
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from swarm_processes import FIRST_SERVER, NODE, ROOT, Nodes, Run, RunFailed, Site, events, swarm
from waiting_node import FAMILY
from wan_lab import Lab, LabUnavailable, add_link_options, link_of

from p2pswarm.node.run.weights_file import state_sizes
from p2pswarm.progress.events import Event, Stepped
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.settings.config import ModelConfig, RunConfig
from p2pswarm.tensors.state_tree import PIECE_VALUES

SERVE = '[serve]\nthreads = 1\ndevice = "cpu"\n'
WAITING = (sys.executable, str(ROOT / "bench" / "waiting_node.py"))
SAMPLE_S = 0.1
RESTORED = re.compile(r"taken from the folder `state`: (\d+)")
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")
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
    again_bytes: int
    """Of these, what came to a second life of the newcomer; 0 without one."""
    missing_bytes: int
    """What its second life had to fetch: the state without the pieces from its folder."""
    unkept_bytes: int
    """Of what came to its first life, what its folder had not."""
    steps_between: int
    """Steps that ended between the newcomer's death and the first megabyte of its second life."""
    steps_again: int
    """Steps that ended from then until it served: for each a reduced gradient came."""
    step_before_s: float
    step_meanwhile_s: float
    """Mean of the steps that any part of the download fell into."""
    training_speed: float
    """The first over the second: what training kept."""
    newcomer_cpu_s: float
    processors_before: float
    """How many all nodes and the lab kept busy."""
    processors_meanwhile: float
    donors_grew_mb: float
    """By how much the peak memory of a donor rose, at most."""


class Processors:
    """How busy all nodes and the lab keep this machine; those that die keep what they took."""

    def __init__(self, nodes: Nodes, lab: Lab) -> None:
        self._nodes, self._lab = nodes, lab
        self._of_nodes: dict[str, float] = {}
        self._at_s, self._taken_s = time.monotonic(), 0.0

    def sample(self) -> float:
        """How many processors were busy since the last sample."""
        self._of_nodes |= self._nodes.cpu_s()
        now_s, taken_s = time.monotonic(), sum(self._of_nodes.values()) + self._lab.emulator_cpu_s()
        busy = (taken_s - self._taken_s) / (now_s - self._at_s)
        self._at_s, self._taken_s = now_s, taken_s
        return busy


def peaks_mb(nodes: Nodes) -> dict[str, float]:
    """The most memory that each server which lives has had at once."""
    found = {}
    for name, pid in nodes.pids.items():
        status = Path(f"/proc/{pid}/status").read_text()
        if name.startswith("server") and (peak := PEAK.search(status)):
            found[name] = int(peak[1]) * 1024 / 1e6
    return found


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

    def whole_s(self, end_s: float) -> list[float]:
        """How long each step took that was over by then."""
        pairs = zip(self._ended, self._ended[1:], strict=False)
        return [b - a for a, b in pairs if b <= end_s]

    @property
    def count(self) -> int:
        """How many have ended."""
        return len(self._ended)

    def between(self, begin_s: float, end_s: float) -> int:
        """How many ended in between."""
        return sum(begin_s < each <= end_s for each in self._ended)

    def lengths_s(self, begin_s: float, end_s: float) -> list[float]:
        """How long each step took that any part of this time fell into."""
        pairs = zip(self._ended, self._ended[1:], strict=False)
        return [b - a for a, b in pairs if begin_s < b and a < end_s]

    def _listen(self, told: Iterator[Event]) -> None:
        try:
            for event in told:
                if isinstance(event, Stepped):
                    with self._changed:
                        self._ended.append(time.monotonic())
                        self._changed.notify_all()
                    print(f"  step {event.step} after {event.seconds:.0f} s", flush=True)
        except RunFailed as error:
            with self._changed:
                self.failed = str(error)
                self._changed.notify_all()


class Said:
    """What a newcomer has said so far."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.serving_s: float | None = None
        """When it began to serve."""
        self.restored = 0
        """The pieces that it took from its folder."""
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: Iterator[str]) -> None:
        with contextlib.suppress(RunFailed):  # it was killed, or `Newcomer.life` gives up
            for line in lines:
                if "serving stage" in line and self.serving_s is None:
                    self.serving_s = time.monotonic()
                if found := RESTORED.search(line):
                    self.restored += int(found[1])


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the newcomer."""

    begun_s: float
    """When its first megabyte had come."""
    ended_s: float
    """When it was killed, or served."""
    came_bytes: int
    cpu_s: float
    restored: int
    """The pieces that it took from the folder of the life before."""


class Newcomer:
    """A server that joins, and perhaps is killed and comes back."""

    def __init__(self, nodes: Nodes, host: int, came: Callable[[], int], patience_s: float) -> None:
        self._nodes, self._host, self._came = nodes, host, came
        self._gives_up_s = time.monotonic() + patience_s
        self._state = nodes.write("newcomer-state", "").with_suffix("")

    def life(self, name: str, half: int, at_half: Callable[[], None] | None) -> Life:
        """Start it; return when it serves, or is killed by `at_half`, when `half` has come."""
        nodes, before = self._nodes, self._came()
        state = f"state = {json.dumps(str(self._state))}\n"
        nodes.start(name, self._host, f'{nodes.joining}role = "stage"\n{state}{SERVE}')
        said, begun_s, cpu_s = Said(nodes.lines(name)), 0.0, 0.0
        while said.serving_s is None and name in nodes.pids:
            if time.monotonic() > self._gives_up_s:
                raise RunFailed("the newcomer did not serve in time")
            came = self._came() - before
            if not begun_s and came > BEGUN_BYTES:
                begun_s = time.monotonic()
            cpu_s = nodes.cpu_s().get(name, cpu_s)
            if at_half is not None and came > half:
                at_half()
                at_half = None
            time.sleep(SAMPLE_S)
        ended_s, came = said.serving_s or time.monotonic(), self._came() - before
        how = "serves" if said.serving_s else "is gone"
        print(f"  {name} {how}: {came / 1e6:.0f} MB came", flush=True)
        return Life(begun_s or ended_s, ended_s, came, cpu_s, said.restored)


def download(newcomer: Newcomer, state_bytes: int, kill: str, nodes: Nodes) -> list[Life]:
    """The newcomer's lives; `kill`: who is killed when half of the state has come, if anybody."""
    lives = [
        newcomer.life("newcomer", state_bytes // 2, (lambda: nodes.kill(kill)) if kill else None)
    ]
    if kill == "newcomer":
        lives.append(newcomer.life("newcomer again", 0, None))
    return lives


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
        family=FAMILY if options.gpu else "gpt",
        precision=options.weights,
        weight_storage=options.weights,
    )
    model = ModelConfig(
        d_model=run.d_model, layers=run.layers, heads=max(1, run.d_model // 64), sequence_length=64
    )
    low = {"precision": options.weights, "weight_storage": options.weights}
    (size,) = state_sizes(RunConfig(stages=1, model=model, **low))
    newcomer = FIRST_SERVER + options.donors
    with Lab(newcomer + 1, link_of(options)) as lab:
        print(lab.describe(), flush=True)

        def came() -> int:
            roads = [(FIRST_SERVER + i, newcomer) for i in range(options.donors)]
            return sum(count.wire_bytes for road, count in lab.counts().items() if road in roads)

        node = (*WAITING, str(options.gpu)) if options.gpu else NODE
        site = Site("wan", lab.address, lab.enter, node)
        with swarm(site, run, [SERVE] * options.donors, 2 * options.patience_s) as nodes:
            steps = Steps(events(nodes.lines("trainer")))
            steps.until(1)
            processors = Processors(nodes, lab)
            processors.sample()
            steps.until(1 + options.steps)
            busy_before = processors.sample()
            kill = "server 0" if options.kill_donor else ""
            kill = "newcomer" if options.kill_newcomer else kill
            peaks, joined_s = peaks_mb(nodes), time.monotonic()
            one = Newcomer(nodes, newcomer, came, options.patience_s)
            lives = download(one, size.nbytes, kill, nodes)
            before = steps.whole_s(joined_s)
            grew_mb = max(mb - peaks[name] for name, mb in peaks_mb(nodes).items())
            steps.until(steps.count + 1)  # the one that it began to serve in
            busy = (busy_before, processors.sample())
    links = options.donors * options.rate_mbit * 1e6
    found = figures(lives, steps, size, links, statistics.median(before), busy)
    return replace(found, donors_grew_mb=grew_mb)


def figures(
    lives: Sequence[Life],
    steps: Steps,
    size: StateSize,
    links: float,
    before_s: float,
    busy: tuple[float, float],
) -> Measured:
    """What the lives of a newcomer came to; `links`: bits a second; `busy`: processors."""
    bytes_ = sum(life.came_bytes for life in lives)
    seconds = sum(life.ended_s - life.begun_s for life in lives)
    meanwhile = steps.lengths_s(lives[0].begun_s, lives[-1].ended_s)
    mean_s = statistics.mean(meanwhile) if meanwhile else before_s
    again = lives[1:]
    state_bytes = size.nbytes
    restored = sum(life.restored for life in again) * PIECE_VALUES * sum(size.item_bytes)
    return Measured(
        state_bytes=state_bytes,
        came_bytes=bytes_,
        seconds=seconds,
        share_of_links=bytes_ * 8 / seconds / links,
        fetched=bytes_ / state_bytes,
        again_bytes=sum(life.came_bytes for life in again),
        missing_bytes=state_bytes - restored if again else 0,
        unkept_bytes=lives[0].came_bytes - restored if again else 0,
        steps_between=steps.between(lives[0].ended_s, again[0].begun_s) if again else 0,
        steps_again=sum(steps.between(life.begun_s, life.ended_s) for life in again),
        step_before_s=before_s,
        step_meanwhile_s=mean_s,
        training_speed=before_s / mean_s,
        newcomer_cpu_s=sum(life.cpu_s for life in lives),
        processors_before=busy[0],
        processors_meanwhile=busy[1],
        donors_grew_mb=0.0,
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
        f"meanwhile, {found.training_speed:.2f} of the speed; processor time of the newcomer "
        f"{found.newcomer_cpu_s:.1f} s; processors busy {found.processors_before:.2f} before, "
        f"{found.processors_meanwhile:.2f} meanwhile; a donor's memory rose by "
        f"{found.donors_grew_mb:.0f} MB at most"
    )
    if found.again_bytes:
        print(
            f"its second life: {found.missing_bytes / 1e6:.0f} MB were missing, "
            f"{found.again_bytes / 1e6:.0f} MB came, "
            f"{found.again_bytes / found.missing_bytes:.2f} of them; "
            f"{found.unkept_bytes / 1e6:.0f} MB of the first were not in its folder; "
            f"{found.steps_between} steps ended between its lives, {found.steps_again} while it "
            "downloaded again"
        )
    if options.json:
        options.json.write_text(json.dumps(asdict(found)) + "\n")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--donors", type=int, default=3)
    add_link_options(parser, rtt_ms=40.0)
    parser.add_argument("--d-model", type=int, default=512, help="1024 with 7 layers: 1 GB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--weights", default="full", choices=["full", "bf16"], help="what they are kept in"
    )
    parser.add_argument("--microbatches", type=int, default=48, help="a step; 64 tokens each")
    parser.add_argument(
        "--gpu",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="a microbatch is a wait, see above; 0: it is computed",
    )
    parser.add_argument("--steps", type=int, default=3, help="before the server joins")
    killed = parser.add_mutually_exclusive_group()
    killed.add_argument("--kill-donor", action="store_true", help="when half of the state is there")
    killed.add_argument("--kill-newcomer", action="store_true", help="as well, and start it again")
    parser.add_argument("--patience-s", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
