"""Stopped trainers in real processes: the run goes on, whoever is stopped and killed.

Two scenes, drawn from a seed each. *successor*: the coordinator gets SIGSTOP in the middle of a
step; the standby that takes over gets SIGKILL soon after; then the first gets SIGCONT. *away*: a
trainer that votes with four servers gets SIGSTOP; two of the servers, of different stages, get
SIGKILL meanwhile; then it gets SIGCONT. The time is from the last of these to the end of a step.

    python bench/stopped_trainers.py [--runs 5] [--scene successor] [--seed 1] [--json FILE]
"""

import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from exactness import introduced
from results import command_line, show, write_json
from swarm_processes import NodeListener, Nodes, Run, RunFailed, Site, swarm

from p2pswarm.progress.events import Peers, Started, Stepped

STAGES, REPLICAS = 2, 2
SERVE = '[serve]\nthreads = 1\ndevice = "emulated"\nemulated_forward_s = 0.01\n'
FOR_EVER_S = 120.0
RUN = Run(
    name="stopped",
    steps=100_000,
    stages=STAGES,
    min_replicas=REPLICAS,
    d_model=32,
    layers=2,
    heads=2,
    sequence_length=16,
    microbatches=16,
    rows=1,
    emulated=True,
)
WARM_STEPS = 3


class Watched:
    """One run, and what its trainers tell."""

    def __init__(self, nodes: Nodes, folder: Path, trainers: int) -> None:
        self.nodes = nodes
        self.listener = NodeListener(nodes)
        self.leader = ""
        self.servers: dict[str, str] = {}
        """Short peer id -> name of the process."""
        self.stages: dict[str, int] = {}
        """Of the servers that are ready, by their short ids."""
        self._steps = 0
        for number in range(trainers):
            name = f"trainer {number}"
            nodes.start_trainer(name, RUN, folder / name, standby=number > 0)
            self.listener.listen_to(name)
        for number in range(STAGES * REPLICAS):
            self.servers |= [introduced(nodes, f"server {number}")]

    def signal(self, name: str, how: signal.Signals) -> None:
        """Send a signal to a node."""
        os.kill(self.nodes.pids[name], how)

    def until_step(self, steps: int, timeout_s: float) -> float | None:
        """Wait for the end of `steps` more steps; the seconds, or None if they do not come."""
        began_s, wanted = time.monotonic(), self._steps + steps
        while self._steps < wanted:
            if not self._next(began_s + timeout_s):
                return None
        return time.monotonic() - began_s

    def until_leader_is_not(self, name: str, timeout_s: float) -> bool:
        """Wait until another trainer coordinates."""
        until_s = time.monotonic() + timeout_s
        while self.leader == name:
            if not self._next(until_s):
                return False
        return True

    def drain(self, seconds: float) -> None:
        """Follow what is told for a while."""
        until_s = time.monotonic() + seconds
        while self._next(until_s):
            pass

    def _next(self, until_s: float) -> bool:
        left_s = until_s - time.monotonic()
        heard = self.listener.next(left_s) if left_s > 0 else None
        if heard is None:
            return False
        name, said = heard
        if isinstance(said, Started):
            self.leader = name
        elif isinstance(said, Stepped):
            self.leader = name
            self._steps += 1
        elif isinstance(said, Peers):
            self.stages = {peer.peer: peer.stage for peer in said.peers if peer.ready}
        return True


def successor(run: Watched, rng: random.Random) -> str:
    """Stop the coordinator, kill who takes over, let the first go on."""
    first = run.leader
    run.drain(rng.uniform(0.0, 1.0))
    run.signal(first, signal.SIGSTOP)
    stopped_s = time.monotonic()
    if not run.until_leader_is_not(first, 30.0):
        raise RunFailed("nobody took over within 30 s")
    second = run.leader
    run.drain(rng.uniform(0.0, 2.0))
    run.nodes.kill(second)
    wait_s = rng.uniform(5.0, 20.0) - (time.monotonic() - stopped_s)
    run.drain(max(0.0, wait_s))
    run.signal(first, signal.SIGCONT)
    return f"{first} stopped for {time.monotonic() - stopped_s:.1f} s, {second} killed"


def away(run: Watched, rng: random.Random) -> str:
    """Stop the trainer, kill a voting server of each stage, let the trainer go on."""
    stop_s = rng.uniform(5.0, 75.0)
    run.signal(run.leader, signal.SIGSTOP)
    killed = []
    for stage in range(STAGES):
        run.drain(rng.uniform(0.0, stop_s / STAGES))
        there = [peer for peer, its in run.stages.items() if its == stage and peer in run.servers]
        victim = rng.choice(there)
        run.nodes.kill(run.servers[victim])
        killed.append(run.servers.pop(victim))
    run.drain(stop_s / 4)
    run.signal(run.leader, signal.SIGCONT)
    return f"{run.leader} stopped for about {stop_s:.0f} s, {' and '.join(killed)} killed"


SCENES = {"successor": (successor, 3), "away": (away, 1)}


def play(scene: str, seed: int) -> tuple[float | None, str]:
    """The seconds from the last fault to the end of a step, and what was done."""
    act, trainers = SCENES[scene]
    with (
        tempfile.TemporaryDirectory() as folder,
        swarm(Site(), RUN, [SERVE] * (STAGES * REPLICAS), trains=False) as nodes,
    ):
        run = Watched(nodes, Path(folder), trainers)
        if run.until_step(WARM_STEPS, 120.0) is None:
            raise RunFailed("the run did not begin")
        done = act(run, random.Random(f"{scene} {seed}"))
        return run.until_step(1, FOR_EVER_S), done


def main() -> int:
    """Play the scenes, print each run and the quantiles."""
    parser = command_line(__doc__)
    parser.add_argument("--scene", choices=SCENES, help="one alone")
    parser.add_argument("--runs", type=int, default=5, help="of each scene")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rows, found = [], {}
    for scene in [options.scene] if options.scene else SCENES:
        times = []
        for seed in range(options.seed, options.seed + options.runs):
            took_s, done = play(scene, seed)
            after = "never" if took_s is None else f"after {took_s:.1f} s"
            print(f"  {scene} {seed}: {done}; next step {after}", flush=True)
            times.append(took_s)
        known = [each for each in times if each is not None]
        lost = len(times) - len(known)
        found[scene] = {"seconds": times, "for_ever": lost}
        median, most = (statistics.median(known), max(known)) if known else (0.0, 0.0)
        rows.append((scene, len(times), lost, f"{median:.1f}", f"{most:.1f}"))
    show(("scene", "runs", "for ever", "median s", "most s"), rows)
    write_json(options.json, found)
    return 1 if any(each["for_ever"] for each in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
