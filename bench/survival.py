"""Random deaths and freezes of real processes, trainers too, and what becomes of the weights.

Three stages of three servers each, two trainers and a bootstrap node, every one a process through
the real command line. Every few seconds a server is killed by SIGKILL or stopped by SIGSTOP for a
while; every `--trainer-every-s` it is the turn of the trainer that coordinates. Another process
comes for each that was killed. A server dies only while another one of its stage is ready, because
a stage whose weights are gone cannot go on. The weights at the end are compared with those of a
plain loop, and the chain of commits is checked by `check_chain.py`, which uses no line of p2pswarm.

    python bench/survival.py --json survival.json --picture survival.png
"""

import argparse
import contextlib
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from exactness import WANTED, compare, tensors, train_plainly, written
from results import command_line, show, write_json
from survival_picture import draw
from swarm_processes import (
    SERVE,
    STANDARD_LIBRARY,
    NodeListener,
    Nodes,
    Run,
    RunFailed,
    Site,
    checked,
)

from p2pswarm.progress.events import Ended, Note, PeerLine, Peers, Started, Stepped

STOPS_S = (2.0, 25.0)  # a link is given up after 15 s of silence: shorter and longer than that
REPLACED_S = 1.0  # after a kill
LOOK_S = 0.2
TRAINER_FAULTS = ("trainer killed", "trainer stopped")


@dataclass(frozen=True, slots=True)
class Happening:
    """What was done to a process, or what the swarm did, for the picture and the figures."""

    at_s: float
    what: str
    """kill, stop, go, trainer killed, trainer stopped, leads, takeover."""
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step, as a trainer told it."""

    at_s: float
    step: int
    loss: float
    members: tuple[int, ...]
    """The ready servers of each stage."""


@dataclass(slots=True)
class Record:
    """All that happened."""

    happenings: list[Happening] = field(default_factory=list)
    steps: list[StepDone] = field(default_factory=list)
    plain_losses: list[float] = field(default_factory=list)

    @property
    def stalls_s(self) -> list[float]:
        """The times between steps, shortest first."""
        times_s = [step.at_s for step in self.steps]
        return sorted(b - a for a, b in itertools.pairwise(times_s))

    def takeovers_s(self, fault: str, until: str) -> list[float]:
        """From each `fault` of a coordinator until another leads, or did a step; shortest first."""
        taken, since_s = [], None
        for one in self.happenings:
            if one.what in TRAINER_FAULTS:
                since_s = one.at_s if one.what == fault else None
            elif one.what == until and since_s is not None:
                taken.append(one.at_s - since_s)
                since_s = None
        return sorted(taken)

    def count(self, what: str) -> int:
        """How often something happened."""
        return sum(one.what == what for one in self.happenings)


class Swarm:
    """The processes, whom the coordinating trainer knows of them, and what is to be done next."""

    def __init__(self, nodes: Nodes, run: Run, options: argparse.Namespace, folder: Path) -> None:
        self._nodes, self._run, self._options, self._folder = nodes, run, options, folder
        self._rng = random.Random(options.seed)
        self._begun_s = time.monotonic()
        self._listener = NodeListener(nodes, keep=folder)
        self._names: dict[str, str] = {}
        """Short peer id -> name of the process."""
        self._peers: tuple[PeerLine, ...] = ()
        self._due: list[tuple[float, str, str]] = []
        """When to continue or to replace which process."""
        self._stopped: set[str] = set()
        self._trainers = 0
        self._standing_by: set[str] = set()
        """The short ids of trainers that a coordinator has taken as standbys since they began."""
        self._hurt = ""
        """The coordinator that was hurt last, until another one, or itself, does a step."""
        self.coordinator = ""
        self.record = Record()
        self.ended: dict[str, Ended] = {}

    def play(self) -> None:
        """Start everybody, and let faults happen until the run is over."""
        for _ in range(self._options.trainers):
            self._start_trainer(f"trainer {self._trainers}", standby=self._trainers > 0)
            self._trainers += 1
        for _ in range(self._run.stages * self._options.replicas):
            self._start_server()
        next_s = next_trainer_s = None
        while not self.ended:
            self._take_news()
            self._do_due()
            now_s = self._now_s()
            if not self.record.steps:
                continue
            next_s = next_s or now_s + self._options.every_s
            next_trainer_s = next_trainer_s or now_s + self._options.trainer_every_s
            if now_s >= next_trainer_s and self._hurt_trainer():
                next_trainer_s = now_s + self._options.trainer_every_s
            elif now_s >= next_s:
                next_s = now_s + self._options.every_s
                self._hurt_server()
        for name in self._stopped:
            self._signal(name, signal.SIGCONT)

    def _take_news(self) -> None:
        heard = self._listener.next(LOOK_S)
        if heard is None:
            return
        name, said = heard
        match said:  # one that is gone was killed, or its trainer said why it failed
            case Peers(peers=peers):
                self._peers = peers
            case Started() if self.coordinator and name != self.coordinator:
                self._happened("leads")
            case Stepped():
                self._stepped(name, said)
            case Ended() if said.failed:
                raise RunFailed(f"{name}: {said.reason}")
            case Ended():
                self.ended[name] = said
            case Note(text=text) if found := re.match(r"trainer (\S+) at \S+ stands by", text):
                self._standing_by.add(found[1])
            case str() if found := re.match(r"peer (\S+) at", said):
                self._names[found[1]] = name

    def _stepped(self, name: str, event: Stepped) -> None:
        if name != self.coordinator:
            if self.coordinator:
                self._happened("takeover")
                print(f"  {self._now_s():.1f} s: {name} coordinates", flush=True)
            self.coordinator = name
        self._hurt = ""
        if self.record.steps and event.step <= self.record.steps[-1].step:
            return  # an old coordinator's word, read late
        members = tuple(len(self._ready(stage)) for stage in range(self._run.stages))
        self.record.steps.append(StepDone(self._now_s(), event.step, event.loss, members))
        if event.step % 10 == 0:
            print(f"  {self._now_s():.1f} s: step {event.step}, loss {event.loss:.3f}", flush=True)

    def _ready(self, stage: int) -> list[PeerLine]:
        return [
            peer
            for peer in self._peers
            if peer.ready and peer.stage == stage and self._names.get(peer.peer, "") in self._up
        ]

    @property
    def _up(self) -> set[str]:
        return set(self._nodes.pids) - self._stopped

    def _hurt_server(self) -> None:
        spare = [p for s in range(self._run.stages) if len(r := self._ready(s)) > 1 for p in r]
        if not spare:
            return
        victim = self._rng.choice(spare)
        name = self._names[victim.peer]
        if self._rng.random() < self._options.stop_share:
            self._stop(name, "stop", victim.stage)
            return
        print(f"  {self._now_s():.1f} s: SIGKILL to {name} of stage {victim.stage}", flush=True)
        self._nodes.kill(name)
        self._happened("kill", victim.stage)
        self._due.append((self._now_s() + REPLACED_S, "server", ""))

    def _hurt_trainer(self) -> bool:
        """Hurt the coordinator, if another trainer can take over."""
        name = self.coordinator
        others = {self._names.get(peer) for peer in self._standing_by} & self._up - {name}
        if name not in self._up or name == self._hurt or not others:
            return False  # nobody has taken over since, or could: who starts is no standby yet
        self._hurt = name
        if self._rng.random() < self._options.stop_share:
            self._stop(name, "trainer stopped", None)
            return True
        print(f"  {self._now_s():.1f} s: SIGKILL to {name}", flush=True)
        self._nodes.kill(name)
        self._happened("trainer killed")
        self._due.append((self._now_s() + self._options.trainer_back_s, "trainer", name))
        return True

    def _stop(self, name: str, what: str, stage: int | None) -> None:
        seconds = self._rng.uniform(*STOPS_S)
        print(f"  {self._now_s():.1f} s: SIGSTOP to {name} for {seconds:.0f} s", flush=True)
        self._signal(name, signal.SIGSTOP)
        self._stopped.add(name)
        self._happened(what, stage)
        self._due.append((self._now_s() + seconds, "go", name))

    def _do_due(self) -> None:
        due = [each for each in self._due if each[0] <= self._now_s()]
        self._due = [each for each in self._due if each not in due]
        for _, what, name in due:
            if what == "go" and name in self._stopped:
                self._stopped.discard(name)
                self._signal(name, signal.SIGCONT)
                self._happened("go")
            elif what == "server":
                self._start_server()
            elif what == "trainer":
                self._start_trainer(name, standby=True)

    def _signal(self, name: str, number: signal.Signals) -> None:
        if (pid := self._nodes.pids.get(name)) is not None:
            subprocess.run(["kill", f"-{number.value}", str(pid)], check=False)

    def _start_server(self) -> None:
        self._listener.listen_to(self._nodes.start_server(SERVE))

    def _start_trainer(self, name: str, *, standby: bool) -> None:
        """A trainer with a folder of its own; one that was killed comes back with its folder."""
        self._standing_by = {p for p in self._standing_by if self._names.get(p) != name}
        state = self._folder / name.replace(" ", "-")
        self._nodes.start_trainer(name, self._run, state, standby=standby)
        self._listener.listen_to(name)

    def _happened(self, what: str, stage: int | None = None) -> None:
        self.record.happenings.append(Happening(self._now_s(), what, stage))

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s


def survive(run: Run, options: argparse.Namespace, folder: Path) -> tuple[Swarm, dict]:
    """The swarm's run; and what the independent script says of the newest chain file."""
    with Nodes(Site(), folder, options.patience_s) as nodes:
        nodes.start_bootstrap()
        swarm = Swarm(nodes, run, options, folder)
        swarm.play()
        nodes.wait(next(iter(swarm.ended)))  # it writes the weights last
    chains = [checked(path) for path in sorted(folder.rglob("*.chain"))]
    if not chains:
        raise RunFailed("no trainer left a chain file")
    return swarm, max(chains, key=lambda chain: chain["steps"])


def main() -> int:
    """Train twice, compare, print, write."""
    options = _options()
    with contextlib.ExitStack() as places:
        folder = options.keep or Path(places.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        ours, theirs = (folder / f"{kind}.safetensors" for kind in ("swarm", "plain"))
        run = Run(
            name="survival",
            steps=options.steps,
            stages=options.stages,
            min_replicas=options.replicas,
            d_model=options.d_model,
            layers=options.layers,
            heads=2,
            sequence_length=64,
            microbatches=options.microbatches,
            rows=4,
            dtype="float64",
            codec="raw",
            weights=str(ours),
            data=options.data,
        )
        try:
            swarm, chain = survive(run, options, folder)
            swarm.record.plain_losses = train_plainly(run, theirs, options.patience_s)
            relative, largest, name = compare(written(folder), dict(tensors(theirs)))
        except RunFailed as error:
            print(f"error: {error}")
            return 1
    ok = relative <= WANTED and chain["ok"] and chain["steps"] == run.steps
    _show(swarm.record, chain, f"{relative:.3g}; of one number {largest:.3g}, in {name}")
    figures = {
        "relative_difference": relative,
        "chain": chain,
        "record": asdict(swarm.record),
    }
    write_json(options.json, figures)
    if options.picture:
        draw(asdict(swarm.record), options.picture)
    return 0 if ok else 1


def _show(record: Record, chain: dict, difference: str) -> None:
    stalls_s = record.stalls_s
    kinds = ("kill", "stop", "trainer killed", "trainer stopped", "takeover")
    longest_s, median_s = stalls_s[-1], stalls_s[len(stalls_s) // 2]
    counts = [str(record.count(kind)) for kind in kinds]
    row = (*counts, len(record.steps), f"{median_s:.2f}", f"{longest_s:.1f}")
    show((*kinds, "steps", "median s", "longest s"), [row])
    for what in TRAINER_FAULTS:
        for until, did in (("leads", "led"), ("takeover", "did a step")):
            if times_s := record.takeovers_s(what, until):
                shown = ", ".join(f"{seconds:.1f}" for seconds in times_s)
                median_s = times_s[len(times_s) // 2]
                print(f"{what}: another {did} after {median_s:.1f} s in the median ({shown})")
    print(f"chain: {json.dumps(chain)}")
    print(f"relative difference of all parameters {difference}")


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--every-s", type=float, default=5.0, help="between two faults of servers")
    parser.add_argument("--trainer-every-s", type=float, default=20.0)
    parser.add_argument("--trainer-back-s", type=float, default=REPLACED_S, help="after a kill")
    parser.add_argument(
        "--stop-share", type=float, default=0.4, help="of the faults; the rest kill"
    )
    parser.add_argument("--data", type=Path, default=STANDARD_LIBRARY, help="text to train on")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=24, help="a step")
    parser.add_argument("--seed", type=int, default=1, help="of who is hurt, and how")
    parser.add_argument("--patience-s", type=float, default=3600.0)
    parser.add_argument("--keep", type=Path, help="a folder for all that the processes write")
    parser.add_argument("--picture", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
