"""A swarm that is cut in two for a while, and what becomes of the weights.

Two stages of two servers each, two trainers and a bootstrap node, every one a process through the
real command line, on a host of its own in the WAN lab (`tests/wanlab`): a network namespace with
the kernel's own TCP. When the run has three voters, the hosts are cut in two:

    halves   the coordinator and a server of each stage on one side; the other trainer, the other
             servers and the third voter on the other side
    kept     as `halves`, but the third voter is on the coordinator's side, which keeps the majority
    alone    the coordinator on one side, all others on the other
    stage    the coordinator on one side, the servers of a stage on the other; all else is whole,
             so the coordinator reaches the stage through a relay, or hands over
    stopped  nothing is cut: the coordinator and a server get SIGSTOP, and later SIGCONT

`--one-way` loses only what the coordinator's side says; it still hears. The side with the majority
of the voters has to go on; the other must not decide anything. After `--apart-s` the cut heals, all
servers come back, and the run goes on to its end. The weights are compared with those of a plain
loop, every trainer's chain is checked by `check_chain.py`, and all chains must be one.

    python bench/cut_in_two.py --cut halves --json cut.json
"""

import argparse
import functools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from check_chain import Rec, entries, newest_chain
from exactness import introduced
from lab_run import LabRun, add_options, play_and_compare
from results import command_line
from swarm_processes import (
    FIRST_SERVER,
    SERVE,
    TRAINER,
    Gone,
    NodeListener,
    Nodes,
    Run,
    RunFailed,
    Site,
    checked,
)
from wan_lab import Lab, Link

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Ended, Note, Peers, Stepped

STAGES, REPLICAS, VOTERS = 2, 2, 3
SERVERS = STAGES * REPLICAS
STANDBY = FIRST_SERVER + SERVERS  # its host
HOSTS = STANDBY + 1
FIRST, SECOND = "trainer 0", "trainer 1"
TRAINER_HOSTS = {FIRST: TRAINER, SECOND: STANDBY}
WHOLE = Link(rate_bits_per_s=None, delay_s=0.04)
"""So a step takes half a second or more on any machine: the run outlasts the cut."""
CUT = Link(rate_bits_per_s=None, delay_s=0.04, loss=1.0)
LAST_STEPS = 20
"""Steps before the end at which the cut heals at the latest, so that all can come back."""


@dataclass(slots=True)
class Seen:
    """What one trainer has told."""

    steps: list[int] = field(default_factory=list)
    """Those that it decided, in order."""
    peers: Peers = field(default_factory=lambda: Peers(()))
    notes: list[str] = field(default_factory=list)
    ended: Ended | None = None


@dataclass(slots=True)
class Told:
    """When what happened."""

    cut_after: int = 0
    """The step after which the network was cut."""
    goes_on_s: float = 0.0
    """Until the next step was decided."""
    apart_s: float = 0.0
    healed_after: int = 0
    whole_again_s: float = 0.0
    """From the end of the cut until every stage had all its servers."""


class Swarm:
    """The processes, and what the trainers say."""

    def __init__(self, nodes: Nodes, run: Run, folder: Path, keep: Path | None) -> None:
        """`keep`: a folder for all that trainers say and servers log."""
        self.seen = {FIRST: Seen(), SECOND: Seen()}
        self.hosts: dict[str, int] = {}
        """Short peer id of a server -> its host."""
        self._nodes, self._run, self._folder = nodes, run, folder
        self._serve = SERVE if keep is None else f'log_level = "info"\n{SERVE}'
        self._listener = NodeListener(nodes, keep)

    def start(self) -> None:
        """All processes; returns when every server is up."""
        self._start_trainer(FIRST, TRAINER)
        names = [self._nodes.start_server(self._serve) for _ in range(SERVERS)]
        for number, name in enumerate(names):
            self.hosts[introduced(self._nodes, name)[0]] = FIRST_SERVER + number
            self._listener.listen_to(name)  # one that ends with an error ends the bench
        self._start_trainer(SECOND, STANDBY)

    @property
    def coordinator(self) -> str:
        """The trainer that decided the last step: a busy machine may have made it the second."""
        return max(self.seen, key=lambda name: self.seen[name].steps[-1:])

    @property
    def last_step(self) -> int:
        """The last step that any trainer decided."""
        return max(seen.steps[-1] for seen in self.seen.values() if seen.steps)

    @property
    def is_over(self) -> bool:
        """Whether the coordinator has ended the run."""
        return self.seen[self.coordinator].ended is not None

    def chain(self, trainer: str) -> list[Rec]:
        """The records of a trainer; the last one may not be decided yet."""
        (file,) = self.state(trainer).glob("*.chain")
        return newest_chain(entries(file.read_bytes()))

    def state(self, trainer: str) -> Path:
        """The folder of a trainer."""
        return self._folder / trainer.replace(" ", "-")

    def until(self, wanted: Callable[[], bool], what: str, patience_s: float = 150.0) -> float:
        """Follow the run until something is so; how long that took."""
        begun_s = time.monotonic()
        while not wanted():
            left_s = begun_s + patience_s - time.monotonic()
            if left_s <= 0:
                last = {name: seen.notes[-3:] for name, seen in self.seen.items()}
                raise RunFailed(f"{what}: not within {patience_s:g} s; last notes: {last}")
            self._take_news(min(left_s, 0.2))
        return time.monotonic() - begun_s

    def ready(self, trainer: str) -> list[tuple[int, int]]:
        """Stage and host of each ready server, as a trainer knows them."""
        lines = self.seen[trainer].peers.peers
        return [(p.stage, self.hosts[p.peer]) for p in lines if p.ready]

    def _start_trainer(self, name: str, host: int) -> None:
        standby = name != FIRST
        self._nodes.start_trainer(name, self._run, self.state(name), standby=standby, host=host)
        self._listener.listen_to(name)

    def _take_news(self, wait_s: float) -> None:
        heard = self._listener.next(wait_s)
        if heard is None:
            return
        name, said = heard
        if isinstance(said, Gone) and said.failed:
            raise said.failed
        if name not in self.seen:
            return
        seen = self.seen[name]
        match said:
            case Ended() if said.failed:
                raise RunFailed(f"{name}: {said.reason}")
            case Ended():
                seen.ended = said
            case Peers():
                seen.peers = said
            case Note():
                seen.notes.append(said.text)
            case Stepped():
                seen.steps.append(said.step)


def sides(swarm: Swarm, how: str) -> tuple[list[int], list[int]]:
    """The hosts on the coordinator's side, and the others."""
    coordinator = swarm.coordinator
    ready = swarm.ready(coordinator)
    ours = [TRAINER_HOSTS[coordinator]]
    if how == "stage":
        return ours, [host for stage, host in ready if stage == STAGES - 1]
    if how != "alone":
        voters = {PeerId(bytes(peer)).short for peer, _ in swarm.chain(coordinator)[-1].voters}
        (third,) = (swarm.hosts[peer] for peer in voters if peer in swarm.hosts)
        (stage,) = (stage for stage, host in ready if host == third)
        (beside,) = (host for s, host in ready if s == stage and host != third)
        other = next(host for s, host in ready if s != stage)
        ours.append(third if how == "kept" else beside)
        if how != "stopped":
            ours.append(other)
    return ours, [host for host in range(HOSTS) if host not in ours]


def cut(lab: Lab, parts: Sequence[Sequence[int]], link: Link, *, one_way: bool) -> None:
    """Give the roads from one part to the other this link, and those back too unless `one_way`."""
    ours, others = parts
    for here in ours:
        for there in others:
            lab.set_link(link, here, there)
            if not one_way:
                lab.set_link(link, there, here)


def parting(
    lab: Lab, nodes: Nodes, swarm: Swarm, options: argparse.Namespace
) -> tuple[str, Callable[[], None], Callable[[], None]]:
    """What is parted, for people; what parts it, and what mends it."""
    ours, others = sides(swarm, options.cut)
    if options.cut == "stopped":
        servers = set(ours) - set(TRAINER_HOSTS.values())
        names = [swarm.coordinator, *(f"server {host - FIRST_SERVER}" for host in servers)]
        pids = [nodes.pids[name] for name in names]
        text = f"{' and '.join(names)} are stopped"
        ways = (functools.partial(tell, pids, how) for how in (signal.SIGSTOP, signal.SIGCONT))
    else:
        text = f"hosts {ours} | {others}"
        parts = functools.partial(cut, lab, (ours, others), one_way=options.one_way)
        ways = (functools.partial(parts, link) for link in (CUT, WHOLE))
    part, mend = ways
    return text, part, mend


def tell(pids: Sequence[int], what: signal.Signals) -> None:
    """Send a signal to processes."""
    for pid in pids:
        os.kill(pid, what)


def play(lab: Lab, nodes: Nodes, swarm: Swarm, run: Run, options: argparse.Namespace) -> Told:
    """One run, parted and mended; raises RunFailed for a side that does what it must not."""
    told = Told()
    swarm.start()
    swarm.until(lambda: _whole(swarm), "three voters and a step of all servers")

    leader = swarm.coordinator
    other = SECOND if leader == FIRST else FIRST
    may_go_on = {"kept": [leader], "stage": [leader, other]}.get(options.cut, [other])
    text, part, mend = parting(lab, nodes, swarm, options)
    told.cut_after = swarm.last_step
    print(f"  step {told.cut_after}: {text}", flush=True)
    part()
    begun_s = time.monotonic()
    # One step more may be under way, which the cut comes too late for; a new leader says it again.
    late = told.cut_after + 1
    told.goes_on_s = swarm.until(
        lambda: any(max(swarm.seen[name].steps, default=0) > late for name in may_go_on),
        "the majority goes on",
    )
    print(f"  step {swarm.last_step} {told.goes_on_s:.1f} s later", flush=True)
    last = run.steps - LAST_STEPS
    swarm.until(
        lambda: time.monotonic() > begun_s + options.apart_s or swarm.last_step >= last,
        "the time apart is over",
        options.apart_s + 1,
    )

    told.apart_s, told.healed_after = time.monotonic() - begun_s, swarm.last_step
    mend()
    print(f"  step {told.healed_after}: mended after {told.apart_s:.1f} s", flush=True)
    told.whole_again_s = swarm.until(
        lambda: len(swarm.ready(swarm.coordinator)) == SERVERS or swarm.is_over, "all are back"
    )
    if swarm.is_over:
        raise RunFailed("the run was over before all servers were back")
    print(f"  step {swarm.last_step}: all are back", flush=True)
    first, second = swarm.seen.values()
    swarm.until(lambda: bool(first.ended and second.ended), "both trainers end")
    check_steps(first.steps, second.steps)
    return told


def _whole(swarm: Swarm) -> bool:
    """All servers are ready and have the weights of a step that three voters decided.

    A server that missed the last step has not its weights: on the majority's side it would be of
    no use, and the majority would wait for the other side, as it should.
    """
    coordinator = swarm.coordinator
    if len(swarm.ready(coordinator)) < SERVERS:
        return False
    decided = swarm.chain(coordinator)[:-1]  # the last one may not be decided yet
    return (
        len(decided) > 1
        and len(decided[-1].voters) == VOTERS
        and sum(len(members) for members, *_ in decided[-1].stages) == SERVERS
    )


def check_steps(first: list[int], second: list[int]) -> None:
    """No trainer says a step twice; both say at most the one that a new leader decides again.

    Its record is the same then, as `check_chains` looks.
    """
    both = set(first).intersection(second)
    inherited = all(step - 1 not in first or step - 1 not in second for step in both)
    if not inherited or any(len(set(steps)) < len(steps) for steps in (first, second)):
        raise RunFailed(f"a step was decided twice: {first} and {second}")


def check_chains(swarm: Swarm, steps: int) -> dict[str, object]:
    """Every trainer's chain is whole by the independent script, and they are one chain."""
    found = [checked(file) for name in swarm.seen for file in swarm.state(name).glob("*.chain")]
    first, second = (swarm.chain(name) for name in (FIRST, SECOND))
    both = min(len(first), len(second))
    longest = max(found, key=lambda chain: chain["steps"])
    if [one.digest for one in first[:both]] != [one.digest for one in second[:both]]:
        raise RunFailed("the trainers' chains are not one")
    if longest["steps"] != steps:
        raise RunFailed(f"the chain has {longest['steps']} of {steps} steps")
    return longest


def main(
    flags: Sequence[str] | None = None,
    nodes_at: Callable[[Site, Path, float], Nodes] = Nodes,
) -> int:
    """Train, cut, heal, compare, print, write. `nodes_at`: how processes are started."""
    options = _options(flags)
    run = Run(
        name="cut in two",
        steps=options.steps,
        stages=STAGES,
        min_replicas=REPLICAS,
        d_model=16,
        heads=2,
        layers=2,
        sequence_length=16,
        microbatches=options.microbatches,
        rows=2,
        dtype="float64",
        codec="raw",
    )
    roads = HOSTS, WHOLE
    return play_and_compare(run, roads, options, lambda lab: cut_and_heal(lab, options), nodes_at)


def cut_and_heal(place: LabRun, options: argparse.Namespace) -> dict[str, object]:
    """The whole run, and what its chains say."""
    place.nodes.start_bootstrap()
    swarm = Swarm(place.nodes, place.run, place.folder, options.keep)
    try:
        told = play(place.lab, place.nodes, swarm, place.run, options)
    finally:
        if options.keep:
            for log in place.folder.glob("server*.log"):
                shutil.copy(log, options.keep)
    for name in swarm.seen:
        place.nodes.wait(name)
    return {"chain": check_chains(swarm, place.run.steps), **asdict(told)}


def _options(flags: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__doc__)
    cuts = ("halves", "kept", "alone", "stage", "stopped")
    parser.add_argument("--cut", choices=cuts, default="halves")
    parser.add_argument("--one-way", action="store_true")
    parser.add_argument("--apart-s", type=float, default=17.0, help="a link lives for 15 s")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--microbatches", type=int, default=12, help="a step")
    parser.add_argument("--keep", type=Path, help="a folder for what trainers say and servers log")
    add_options(parser, patience_s=500.0)
    return parser.parse_args(flags)


if __name__ == "__main__":
    sys.exit(main())
