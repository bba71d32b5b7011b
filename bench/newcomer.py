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
* by how much the peak of a donor's memory rose above that of the steps before.

**Training's speed needs a processor to spare.** All hosts of the lab share this machine. Where the
servers compute on it without a pause, whatever a newcomer's process does is taken from them, though
on a machine of its own it would take nothing; the ratio then says how many processors there are.
So `--gpu SECONDS` makes a microbatch's computing a wait, as for a host with a graphics card
(`waiting_node.py`). What is left in the ratio is what a newcomer costs the others: their links,
event loops, copies, encryption, hashes. Without it, the ratio is that of one machine for all.

With `--kill-newcomer` the newcomer is killed when half of the state has come, and started again
with the same `state` folder at once; bytes are then those of both its lives, and seconds without
the time between them in which nothing came. What its second life did not take from the folder was
missing, and is shown beside what came. If a step has ended in between, all comes again; for one
that ends later a reduced gradient comes, a third of the state. So to see only what was missing, a
step has to take longer than the download and two starts.

With `--adapter RANK` the run trains adapters on a frozen llama of random weights, in a folder. The
donors read its files, and the newcomer has none: so what it fetches is base and state together, and
its second life takes the base from its folder.

    python bench/newcomer.py --d-model 512 --layers 4 --json newcomer.json
    python bench/newcomer.py --d-model 512 --layers 8 --adapter 16 --base nf4 [--kill-newcomer]
    python bench/newcomer.py --d-model 1024 --layers 7 --gpu 10 --microbatches 12 --kill-newcomer
"""

import argparse
import contextlib
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from proc import memory_bytes
from results import command_line, write_json
from swarm_processes import (
    FIRST_SERVER,
    NODE,
    ROOT,
    SERVE,
    Nodes,
    Run,
    RunFailed,
    Site,
    events,
    swarm,
)
from transformers import LlamaConfig, LlamaForCausalLM
from waiting_node import FAMILY
from wan_lab import Lab, LabUnavailable, add_link_options, carried_bytes, link_of

from p2pswarm.models.base_weights.base_layout import PIECE_BYTES, base_bytes
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.weights_file import state_sizes
from p2pswarm.progress.events import Event, Stepped
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.settings.parser import load
from p2pswarm.tensors.state_tree import PIECE_VALUES

WAITING = (sys.executable, str(ROOT / "bench" / "waiting_node.py"))
SAMPLE_S = 0.1
RESTORED = re.compile(r"pieces of the weights taken from the folder `state`: (\d+)")
FROZEN = re.compile(r"(\d+) of \d+ pieces of its frozen weights taken from the folder `state`")
BEGUN_BYTES = 1_000_000  # of the download: the link to the trainer carries less
MB = 1e6


@dataclass(frozen=True, slots=True)
class Measured:
    """One download."""

    state_bytes: int
    """Of weights and moments, and of what is frozen."""
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
    step_before_s: float
    step_meanwhile_s: float
    """Mean of the steps that any part of the download fell into."""
    training_speed: float
    """The first over the second: what training kept."""
    donors_grew_mb: float
    """By how much the peak memory of a donor rose, at most."""


class Steps:
    """When each step ended, on this machine's clock; fed by a thread."""

    def __init__(self, told: Iterator[Event]) -> None:
        self._ended: list[float] = []
        self._failed = ""
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, args=(told,), daemon=True).start()

    def until(self, count: int) -> None:
        """Wait until so many steps have ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) >= count or self._failed)
        if self._failed:
            raise RunFailed(self._failed)

    @property
    def count(self) -> int:
        """How many have ended."""
        return len(self._ended)

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
                self._failed = str(error)
                self._changed.notify_all()


class Said:
    """What a newcomer has said so far."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.serving_s: float | None = None
        """When it began to serve."""
        self.restored = 0
        """The pieces that it took from its folder."""
        self.frozen = 0
        """Those of frozen weights."""
        threading.Thread(target=self._listen, args=(lines,), daemon=True).start()

    def _listen(self, lines: Iterator[str]) -> None:
        with contextlib.suppress(RunFailed):  # it was killed, or `Newcomer.life` gives up
            for line in lines:
                if "serving stage" in line and self.serving_s is None:
                    self.serving_s = time.monotonic()
                if found := RESTORED.search(line):
                    self.restored += int(found[1])
                if found := FROZEN.search(line):
                    self.frozen += int(found[1])


@dataclass(frozen=True, slots=True)
class Life:
    """One life of the newcomer."""

    begun_s: float
    """When its first megabyte had come."""
    ended_s: float
    """When it was killed, or served."""
    came_bytes: int
    restored: int
    """The pieces that it took from the folder of the life before."""
    frozen: int
    """Those of frozen weights."""


class Newcomer:
    """A server that joins, and perhaps is killed and comes back."""

    def __init__(self, nodes: Nodes, host: int, came: Callable[[], int], patience_s: float) -> None:
        self._nodes, self._host, self._came = nodes, host, came
        self._gives_up_s = time.monotonic() + patience_s
        self._state = nodes.write("newcomer-state", "").with_suffix("")

    def life(self, name: str, dies_at: float = float("inf")) -> Life:
        """Start it; return when it serves, or is killed because so many bytes have come."""
        nodes, before = self._nodes, self._came()
        state = f"state = {json.dumps(str(self._state))}\n"
        nodes.start(name, self._host, f'{nodes.joining}role = "stage"\n{state}{SERVE}')
        said, begun_s = Said(nodes.lines(name)), 0.0
        while said.serving_s is None and name in nodes.pids:
            if time.monotonic() > self._gives_up_s:
                raise RunFailed("the newcomer did not serve in time")
            came = self._came() - before
            if not begun_s and came > BEGUN_BYTES:
                begun_s = time.monotonic()
            if came > dies_at:
                nodes.kill(name)
            time.sleep(SAMPLE_S)
        ended_s, came = said.serving_s or time.monotonic(), self._came() - before
        how = "serves" if said.serving_s else "is gone"
        print(f"  {name} {how}: {came / MB:.0f} MB came", flush=True)
        return Life(begun_s or ended_s, ended_s, came, said.restored, said.frozen)


def peaks_mb(nodes: Nodes) -> dict[str, float]:
    """The most memory that each server which lives has had at once."""
    servers = {name: pid for name, pid in nodes.pids.items() if name.startswith("server")}
    return {name: memory_bytes(pid, "VmHWM") / MB for name, pid in servers.items()}


def measure(options: argparse.Namespace) -> Measured:
    """Train, let a server join, and look."""
    low = {"precision": options.weights, "weight_storage": options.weights}
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
        **low,
    )
    serve = SERVE
    host = FIRST_SERVER + options.donors
    with tempfile.TemporaryDirectory() as name, Lab(host + 1, link_of(options)) as lab:
        if options.adapter:
            model = made_llama(Path(name), run)
            frozen = {"base": options.base, "adapter": options.adapter}
            run = replace(run, family=f"hf:{model}", start="pretrained", **frozen)
            serve += f"pretrained = {json.dumps(str(model))}\n"
        size = size_of(run, Path(name))
        print(lab.describe(), flush=True)

        def came() -> int:
            roads = [(FIRST_SERVER + i, host) for i in range(options.donors)]
            return carried_bytes(lab, roads.__contains__)

        node = (*WAITING, str(options.gpu)) if options.gpu else NODE
        site = Site("wan", lab.address, lab.enter, node)
        with swarm(site, run, [serve] * options.donors, 2 * options.patience_s) as nodes:
            steps = Steps(events(nodes.lines("trainer")))
            steps.until(1 + options.steps)
            peaks, joined_s = peaks_mb(nodes), time.monotonic()
            one = Newcomer(nodes, host, came, options.patience_s)
            if options.kill_newcomer:
                lives = [one.life("newcomer", size.total / 2), one.life("newcomer again")]
            else:
                lives = [one.life("newcomer")]
            grew_mb = max(mb - peaks[name] for name, mb in peaks_mb(nodes).items())
            steps.until(steps.count + 1)  # the one that it began to serve in
    links = options.donors * options.rate_mbit * 1e6
    return figures(lives, steps, size, links, joined_s, grew_mb)


@dataclass(frozen=True, slots=True)
class StageSize:
    """What a newcomer lacks."""

    state: StateSize
    frozen: int
    """Bytes."""

    @property
    def total(self) -> int:
        """All bytes."""
        return self.state.nbytes + self.frozen


def size_of(run: Run, folder: Path) -> StageSize:
    """The size of the one stage."""
    (folder / "run.toml").write_text(run.settings())
    config = resolved(load(folder / "run.toml").run)
    (state,) = state_sizes(config)
    return StageSize(state, base_bytes(config, stage_blocks(config, 0)))


def made_llama(folder: Path, run: Run) -> Path:
    """A llama of random weights and of the run's size."""
    place = folder / "llama"
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=run.d_model,
        intermediate_size=4 * run.d_model,
        num_hidden_layers=run.layers,
        num_attention_heads=max(1, run.d_model // 64),
        max_position_embeddings=run.sequence_length,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(place)
    return place


def figures(
    lives: Sequence[Life],
    steps: Steps,
    size: StageSize,
    links: float,
    joined_s: float,
    grew_mb: float,
) -> Measured:
    """What the lives of a newcomer came to; `links`: bits a second."""
    came_bytes = sum(life.came_bytes for life in lives)
    seconds = sum(life.ended_s - life.begun_s for life in lives)
    before_s = statistics.median(steps.lengths_s(0.0, joined_s)[:-1])  # the last is not over
    meanwhile = steps.lengths_s(lives[0].begun_s, lives[-1].ended_s)
    mean_s = statistics.mean(meanwhile) if meanwhile else before_s
    again = lives[1:]
    restored = sum(life.restored for life in again) * PIECE_VALUES * sum(size.state.item_bytes)
    restored += sum(life.frozen for life in again) * PIECE_BYTES
    return Measured(
        state_bytes=size.total,
        came_bytes=came_bytes,
        seconds=seconds,
        share_of_links=came_bytes * 8 / seconds / links,
        fetched=came_bytes / size.total,
        again_bytes=sum(life.came_bytes for life in again),
        missing_bytes=size.total - restored if again else 0,
        step_before_s=before_s,
        step_meanwhile_s=mean_s,
        training_speed=before_s / mean_s,
        donors_grew_mb=grew_mb,
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
        f"{found.state_bytes / MB:.0f} MB of state: {found.came_bytes / MB:.0f} MB came in "
        f"{found.seconds:.1f} s, {found.share_of_links:.2f} of the links, {found.fetched:.2f} of "
        f"the state; a step {found.step_before_s:.2f} s before, {found.step_meanwhile_s:.2f} s "
        f"meanwhile, {found.training_speed:.2f} of the speed; a donor's memory rose by "
        f"{found.donors_grew_mb:.0f} MB at most"
    )
    if found.again_bytes:
        print(
            f"its second life: {found.missing_bytes / MB:.0f} MB were missing, "
            f"{found.again_bytes / MB:.0f} MB came, "
            f"{found.again_bytes / found.missing_bytes:.2f} of them"
        )
    write_json(options.json, asdict(found))
    return 0


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--donors", type=int, default=3)
    add_link_options(parser, rtt_ms=40.0)
    parser.add_argument("--d-model", type=int, default=512, help="1024 with 7 layers: 1 GB")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument(
        "--weights", default="full", choices=["full", "bf16"], help="what they are kept in"
    )
    parser.add_argument("--adapter", type=int, default=0, metavar="RANK", help="see above")
    parser.add_argument("--base", default="nf4", choices=["full", "bf16", "int8", "nf4"])
    parser.add_argument("--microbatches", type=int, default=48, help="a step; 64 tokens each")
    parser.add_argument(
        "--gpu",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="a microbatch is a wait, see above; 0: it is computed",
    )
    parser.add_argument("--steps", type=int, default=3, help="before the server joins")
    parser.add_argument("--kill-newcomer", action="store_true", help="half-way, and start it again")
    parser.add_argument("--patience-s", type=float, default=300.0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
