"""The swarm's final weights against those of a plain loop, with servers killed on the way.

Two stages of two servers each (`--replicas`), a trainer and a bootstrap node, every one a process
through the real command line; a server is killed by SIGKILL in the middle of a step and another is
started in its place. The plain loop trains on the same microbatches in one process. By default all
is float64 and travels raw, so that rounding hides nothing: sums are only added in another order
(1e-14 or so), while a microbatch that is lost or counted twice shows at 1e-3. `--codec` and
`--dtype` tell what a codec changes; a difference above 1e-9 is a failure all the same.

A kill is due every `--kill-every` steps (0: once, halfway). It waits until both stages have two
ready servers again, so a machine that starts a process slowly sees fewer of them.

With `--trainers N` there are so many trainers, and with `--kill-trainer-every STEPS` the one that
coordinates is killed, too, and started again with its folder. At the end an independent script
checks the chain of commits in every trainer's folder.

With `--emulated` nobody computes: it is a rehearsal (docs/simulation.md), whose gradients add up
to the same bits in any order. Then the weights have to be the same bits, too. So they have with
`--averaging int-grid`, in float32 as well (docs/codecs.md), on processors of one kind.

    python bench/exactness.py --kill-every 5 --json exactness.json
    python bench/exactness.py --trainers 2 --kill-every 7 --kill-trainer-every 10 --steps 60
    python bench/exactness.py --dtype float32 --averaging int-grid --forward dither6
    python bench/exactness.py --averaging powersgd --kill-every 5
    python bench/exactness.py --delay 1 --optimizer muon --kill-every 7
    python bench/exactness.py --device cuda --kill-every 5    # all servers on one GPU
    python bench/exactness.py --chats --trainers 2 --kill-every 10 --kill-trainer-every 20

With `--chats` rows are prompts and completions of unequal lengths, made by a rule. Only completions
are targets, and each step's loss is over their number.
"""

import argparse
import hashlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from emulated_weights import RehearsalReference, configured
from results import command_line, show, write_json
from swarm_processes import (
    SERVE,
    STANDARD_LIBRARY,
    Gone,
    NodeListener,
    Nodes,
    Run,
    RunFailed,
    Site,
    checked,
    events,
    first_match,
    plain,
    swarm,
)
from torch import Tensor

from p2pswarm.progress.events import (
    Ended,
    Event,
    MicrobatchCounts,
    PeerLine,
    Peers,
    Started,
    Stepped,
)
from p2pswarm.settings.config import INT_GRID

STAGES, REPLICAS = 2, 2
WANTED = 1e-9
CHATS = 2_000
ROTATING = Path(__file__).with_name("rotating_node.py")
REHEARSE = '[serve]\nthreads = 1\ndevice = "emulated"\nemulated_forward_s = 0.02\n'
KINDS = {"F32": torch.float32, "F64": torch.float64}


class Trainers:
    """The trainers of one run, killed and started again with their folders.

    The first founds the run; the others stand by. Each keeps its chain file in a folder of its own,
    so one that is started again goes on where it was.
    """

    def __init__(self, nodes: Nodes, run: Run, count: int, folder: Path) -> None:
        self.kills = 0
        """How often the coordinator was killed."""
        self.takeovers = 0
        """How often a trainer went on with the run from a record."""
        self.leader = ""
        """Who coordinates, as far as its events tell."""
        self._nodes = nodes
        self._run = run
        self._folder = folder
        self._lives: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._listener = NodeListener(nodes)
        for number in range(count):
            self._start(number)

    def events(self) -> Iterator[Event]:
        """What the coordinator tells, whoever that is, until one that has ended the run has left.

        A trainer that comes back only then finds nobody who could tell it that the run is over.
        """
        gone: set[str] = set()
        over = ""
        while set(self._names) - gone and not (over in gone and over == self.leader):
            name, said = self._listener.next()
            match said:
                case str():
                    continue
                case Gone(failed) if failed and not self._killed(name):
                    raise failed
                case Gone():
                    gone.add(name)
                    continue
                case Ended() if said.failed:
                    raise RunFailed(said.reason)
                case Ended() if name != self.leader:  # a standby tells of the end, too
                    continue
                case Ended():
                    over = name
                case Started():
                    self.takeovers += self.leader != ""
                    self.leader = name
                case Stepped():
                    self.leader = name
            yield said

    @property
    def leader_lives(self) -> bool:
        """Whether the last word was not that of a life that was killed since."""
        return self.leader in self._names

    def kill_leader(self) -> None:
        """SIGKILL to the coordinator, unless it is done; it is started again with its folder."""
        if self._listener.ended:
            return
        number = self._names[self.leader]
        self._nodes.kill(self.leader)
        self.kills += 1
        self._start(number)

    def check_chains(self) -> None:
        """Prove by the independent script that one chain has all steps; RunFailed if not.

        It is kept beside the run's weights.
        """
        longest = 0
        for number in self._lives:
            for file in self._state(number).glob("*.chain"):
                steps = checked(file, self._run)["steps"]
                if steps > longest:
                    shutil.copy(file, chain_of(self._run))
                longest = max(longest, steps)
        if longest != self._run.steps:
            raise RunFailed(f"the chain has {longest} of {self._run.steps} steps")

    def _start(self, number: int) -> None:
        life = self._lives[number] = self._lives.get(number, -1) + 1
        name = f"trainer {number} life {life}"
        self._names = {n: k for n, k in self._names.items() if k != number} | {name: number}
        self._nodes.start_trainer(name, self._run, self._state(number), standby=number > 0)
        self._listener.listen_to(name)

    def _killed(self, name: str) -> bool:
        """Whether another life of this trainer has begun."""
        return name not in self._names

    def _state(self, number: int) -> Path:
        return self._folder / f"trainer-{number}"


def chain_of(run: Run) -> Path:
    """The file with the records of a run that is over."""
    return Path(run.weights).with_suffix(".chain")


@dataclass(slots=True)
class Killer:
    """Who is to be killed when."""

    nodes: Nodes
    due: list[int]
    """Steps after which a kill is due, in order."""
    rng: random.Random
    servers: dict[str, str]
    """Short peer id -> name of the process."""
    serve: str
    """The settings of a server."""
    killed: list[int] = field(default_factory=list)
    """The steps in which one died."""
    replicas: int = REPLICAS
    """Of each stage."""
    stages: int = STAGES
    peers: tuple[PeerLine, ...] = ()
    trainers: Trainers | None = None
    trainers_due: list[int] = field(default_factory=list)
    """Steps after which the coordinator is to be killed, in order."""
    step_s: float = 0.0
    steps: list[Stepped] = field(default_factory=list)
    """What was told of each."""
    _ended_s: float = 0.0

    def told(self, event: Event) -> None:
        """Follow the run; kill and replace when it is time."""
        if isinstance(event, Peers):
            self.peers = event.peers
        if not isinstance(event, Stepped):
            return
        self.steps.append(event)
        self.step_s, self._ended_s = event.seconds - self._ended_s, event.seconds
        if self.due and event.step >= self.due[0] and self._complete():
            del self.due[0]
            self._kill(event.step)
        elif (
            self.trainers_due
            and event.step >= self.trainers_due[0]
            and self.trainers
            and self.trainers.leader_lives
        ):
            del self.trainers_due[0]
            self._wait_within_step()
            print(f"  step {event.step + 1}: SIGKILL to {self.trainers.leader}", flush=True)
            self.trainers.kill_leader()

    def _complete(self) -> bool:
        """Whether every stage has all its servers ready."""
        stages = range(self.stages)
        counts = [sum(p.ready and p.stage == stage for p in self.peers) for stage in stages]
        return min(counts) >= self.replicas

    def _wait_within_step(self) -> None:
        """Let some of the next step pass, so that a kill falls anywhere in it.

        A new coordinator counts its seconds anew: the first step after a takeover has none.
        """
        time.sleep(self.rng.uniform(0.0, max(0.0, 0.8 * self.step_s)))

    def _kill(self, step: int) -> None:
        stage = len(self.killed) % self.stages
        victim = self.rng.choice([p.peer for p in self.peers if p.stage == stage])
        self._wait_within_step()
        print(f"  step {step + 1}: SIGKILL to {self.servers[victim]} of stage {stage}", flush=True)
        self.nodes.kill(self.servers[victim])
        self.peers = tuple(p for p in self.peers if p.peer != victim)
        self.killed.append(step + 1)
        self.servers |= [introduced(self.nodes, self.nodes.start_server(self.serve))]


def introduced(nodes: Nodes, name: str) -> tuple[str, str]:
    """A server's short id and its process."""
    return first_match(nodes.lines(name), r"peer (\S+) at"), name


def site_of(options: argparse.Namespace) -> Site:
    """This host; with `--rotate` its nodes have another rule for codecs."""
    if not options.rotate:
        return Site()
    return Site(node=(sys.executable, str(ROTATING), "--every", str(options.rotate)))


def train(run: Run, options: argparse.Namespace) -> tuple[Killer, MicrobatchCounts]:
    """The swarm's run; who was killed when, and what the last coordinator counted."""
    computing = SERVE.replace("cpu", options.device)
    return train_on(site_of(options), run, REHEARSE if options.emulated else computing, options)


def train_on(
    site: Site, run: Run, serve: str, options: argparse.Namespace
) -> tuple[Killer, MicrobatchCounts]:
    """The same with servers of these settings."""
    servers = [serve] * (run.stages * options.replicas)
    with (
        tempfile.TemporaryDirectory() as folder,
        swarm(site, run, servers, options.patience_s, trains=False) as nodes,
    ):
        trainers = Trainers(nodes, run, options.trainers, Path(folder))
        names = dict(introduced(nodes, f"server {number}") for number in range(len(servers)))
        every, often = options.kill_every, options.kill_trainer_every
        due = list(range(every, run.steps - 1, every)) if every else [run.steps // 2]
        killer = Killer(nodes, due, random.Random(options.seed), names, serve, trainers=trainers)
        killer.replicas, killer.stages = options.replicas, run.stages
        killer.trainers_due = list(range(often, run.steps - 1, often)) if often else []
        ended: Ended | None = None
        for event in trainers.events():  # to their end: the weights are written then
            killer.told(event)
            if isinstance(event, Ended):
                ended = event
        if ended is None:
            raise RunFailed("the trainers left without a word")
        trainers.check_chains()
    return killer, ended.counts


def train_plainly(
    run: Run, weights: Path, patience_s: float, device: str = "cpu", more: Sequence[str] = ()
) -> list[float]:
    """The same in one process, with `more` flags; the losses of the steps."""
    flags = ["--weights", str(weights), "--device", device, "--rounded", *more]
    if run.choice == "measured":
        flags += ["--chain", str(chain_of(run))]
    with plain(run, flags, patience_s) as nodes:
        told = events(nodes.lines("plain"))
        return [event.loss for event in told if isinstance(event, Stepped)]


def tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """What a safetensors file holds."""
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            start, end = (begin + offset for offset in about["data_offsets"])
            values = torch.frombuffer(memoryview(data)[start:end], dtype=KINDS[about["dtype"]])
            yield name, values.view(about["shape"])


def written(folder: Path) -> dict[str, Tensor]:
    """The weights that the swarm's last coordinator wrote; their name tells run and step."""
    found = max(
        folder.glob("swarm-*.safetensors"), key=lambda path: path.stat().st_mtime, default=None
    )
    if found is None:
        raise RunFailed("no trainer wrote the weights")
    return dict(tensors(found))


def compare(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, float, str]:
    """Relative difference of all parameters, the largest of one number, and whose that is."""
    if {n: t.shape for n, t in ours.items()} != {n: t.shape for n, t in theirs.items()}:
        raise RunFailed("the two hold different parameters")
    away = {name: (ours[name] - theirs[name]).abs() for name in ours}
    square = sum(x.square().sum().item() for x in away.values())
    whole = sum(x.square().sum().item() for x in theirs.values())
    name = max(away, key=lambda each: away[each].max().item())
    return (square / whole) ** 0.5, away[name].max().item(), name


def digest_of(weights: dict[str, Tensor]) -> str:
    """The SHA-256 of all parameters, by their names in order."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def made_chats(folder: Path) -> Path:
    """Rows by a rule: sums of few or many numbers, whose answers are short or long."""
    rng, rows = random.Random(1), []
    for _ in range(CHATS):
        numbers = [rng.randrange(100) for _ in range(rng.choice([2, 2, 3, 9]))]
        told = [f"{sum(numbers[: n + 1])}" for n in range(len(numbers))]
        answer = " then ".join(told) if rng.random() < 0.3 else told[-1]
        rows.append({"prompt": " + ".join(map(str, numbers)) + " = ", "completion": answer})
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def main() -> int:
    """Train twice, compare, print, write."""
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (Path(folder) / f"{kind}.safetensors" for kind in ("swarm", "plain"))
        run = Run(
            name="exactness",
            steps=options.steps,
            stages=STAGES,
            min_replicas=options.replicas,
            d_model=options.d_model,
            layers=options.layers,
            heads=2,
            sequence_length=options.sequence_length,
            microbatches=options.microbatches,
            rows=options.rows,
            dtype=options.dtype,
            codec=options.forward,
            backward=options.backward,
            averaging=options.averaging,
            averaging_rank=options.averaging_rank,
            boundary=options.boundary,
            delay=options.delay,
            spot_check_share=options.spot_checks,
            optimizer=options.optimizer,
            choice="measured" if options.rotate else "fixed",
            weights=str(ours),
            data=made_chats(Path(folder)) if options.chats else options.data,
            emulated=options.emulated,
            adapter=options.adapter,
            base=options.base,
            tie=options.tied or None,
        )
        try:
            killer, counts = train(run, options)
            if options.emulated:
                reference = RehearsalReference(configured(run))
                norms = list(reference.norms())
                print(f"norm of the last gradient {norms[-1]:.6g}")
                expected = reference.weights()
            else:
                train_plainly(run, theirs, options.patience_s, options.device.partition(",")[0])
                expected = dict(tensors(theirs))
            found = written(Path(folder))
            relative, largest, name = compare(found, expected)
        except RunFailed as error:
            print(f"error: {error}")
            return 1
    killed, trainers = killer.killed, killer.trainers
    shown = ", ".join(map(str, killed))
    titles = "steps", "killed in step", "microbatches", "sent again"
    show(titles, [(run.steps, shown, counts.counted, counts.replayed)])
    if trainers is not None and trainers.kills:
        print(f"coordinators killed: {trainers.kills}, taken over: {trainers.takeovers}")
    print(f"relative difference of all parameters {relative:.3g}")
    print(f"largest of a single number {largest:.3g}, in {name}")
    digests = digest_of(found), digest_of(expected)
    print(f"SHA-256 of the weights {digests[0]}, of the plain loop's {digests[1]}")
    figures = {
        "relative": relative,
        "relative_difference": relative,
        "largest": largest,
        "equal_bits": digests[0] == digests[1],
        "sha256": digests[0],
        "steps": run.steps,
        "kills": len(killed) + (trainers.kills if trainers else 0),
        "trainer_kills": trainers.kills if trainers else 0,
        "takeovers": trainers.takeovers if trainers else 0,
        "killed_in_steps": killed,
        "microbatches": {"counted": counts.counted, "replayed": counts.replayed},
    }
    write_json(options.json, figures)
    bits = options.emulated or (options.averaging == INT_GRID and options.dtype == "float32")
    return 0 if (digests[0] == digests[1] if bits else relative <= WANTED) else 1


def line_with_kills(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of a bench that trains through kills."""
    parser = command_line(text)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kill-every", type=int, default=0, help="steps; 0: one kill, halfway")
    parser.add_argument("--trainers", type=int, default=1)
    parser.add_argument(
        "--kill-trainer-every", type=int, default=0, help="steps; 0: the trainer lives"
    )
    parser.add_argument("--replicas", type=int, default=REPLICAS, help="servers of each stage")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--seed", type=int, default=1, help="of who is killed and when in a step")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    return parser


def _options() -> argparse.Namespace:
    parser = line_with_kills(__doc__)
    parser.add_argument("--data", type=Path, default=STANDARD_LIBRARY, help="text to train on")
    parser.add_argument("--chats", action="store_true", help="train on prompts and completions")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=24, help="a step")
    parser.add_argument("--rows", type=int, default=4, help="of a microbatch")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--emulated", action="store_true", help="a rehearsal, compared bit for bit")
    kind.add_argument("--tied", action="store_true", help="embedding and head are one tensor")
    parser.add_argument("--forward", "--codec", default="raw", help="the codec of activations")
    parser.add_argument("--backward", default="", help="of gradients; else as forward")
    parser.add_argument(
        "--averaging", default="raw", help="of sums within a stage, or as raw,powersgd of each"
    )
    parser.add_argument("--averaging-rank", type=int, default=8, help="of powersgd")
    parser.add_argument("--boundary", default="none", help="modules at the cut")
    parser.add_argument("--adapter", type=int, default=0, help="the rank of adapters; 0: none")
    parser.add_argument("--base", default="full", choices=("full", "bf16", "int8", "nf4"))
    parser.add_argument("--delay", type=int, default=0, help="steps, with the correction")
    parser.add_argument("--spot-checks", type=float, default=0.0, help="the share of microbatches")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "muon"))
    parser.add_argument(
        "--rotate", type=int, default=0, help="steps after which records choose other codecs"
    )
    parser.add_argument("--device", default="cpu", help="of servers; the first also of the loop")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
