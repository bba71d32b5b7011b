"""One stranger against an open run: whether the run, or a node of it, ends, and what it costs.

    python bench/strangers.py [--only NAME,...] [--seconds 8] [--rounds 2] [--json FILE]

The run: a trainer, a standby and one server that its owner has invited, which vote; three more
servers, two for each of two stages; and a node that waits for a run of another name. All are real
processes. Beside them bench/stranger.py speaks the real protocol with an identity of its own, one
attack after another. Servers only take the time of computing, so that what is measured is the
protocol, and not who has the processor.

Calm and attack take turns. A row's share is the steps per second under the attack over those of the
calm before and after it, all rounds together. The exit status is 1 if a node or the run ended, a
forbidden folder was written to, or a share is below 0.95.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from results import command_line, write_json
from stranger import ATTACKS, FORWARD_S, NOBODYS
from swarm_processes import (
    FIRST_SERVER,
    ROOT,
    SETTINGS,
    TRAINER,
    Gone,
    NodeListener,
    Nodes,
    Run,
    RunFailed,
    Site,
    first_match,
)

from p2pswarm.progress.events import Ended, Event, Started, Stepped

WANTED = 0.95
SETTLES_S = 2.0  # after an attack: what it leaves behind counts as its own
WARM_UP_STEPS = 8
READY_S = 60.0
STRANGER = ROOT / "bench" / "stranger.py"
STAGES, REPLICAS = 2, 2
AT = r"at (127\.0\.0\.1:\d+)"


@dataclass(slots=True)
class Row:
    """One attack."""

    attack: str
    does: str
    calm_steps_per_s: float = 0.0
    steps_per_s: float = 0.0
    share: float = 0.0
    ended: list[str] = field(default_factory=list)
    """The nodes that ended while it lasted."""
    takeovers: int = 0
    out: int = 0
    """How often an honest server was out of the run for a while."""
    longest_s: float = 0.0
    """The longest step under the attack."""
    answers: dict[str, int] = field(default_factory=dict)
    """What the stranger was answered."""
    broken: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Note what does not hold."""
        wrong = {
            f"{', '.join(self.ended)} ended": bool(self.ended),
            "another trainer took over": self.takeovers > 0,
            "the stranger failed itself": any(k.startswith("ended by") for k in self.answers),
            f"{self.share:.2f} of the calm's steps": self.share < WANTED,
        }
        self.broken = [what for what, is_so in wrong.items() if is_so]

    def line(self) -> str:
        """The row for people."""
        rates = f"{self.steps_per_s:.2f} of {self.calm_steps_per_s:.2f} steps/s ({self.share:.2f})"
        about = f"longest {self.longest_s:.1f} s, out {self.out}"
        answers = ", ".join(f"{name} {count}" for name, count in self.answers.items())
        verdict = "holds" if not self.broken else "BROKEN: " + "; ".join(self.broken)
        return f"{self.attack:10} {rates}, {about} | {answers} | {verdict}"


class World:
    """The run's processes, and what they have said."""

    def __init__(self, nodes: Nodes, folder: Path) -> None:
        self._nodes, self._folder = nodes, folder
        self._listener = NodeListener(nodes, keep=folder)
        self._steps: list[tuple[float, int]] = []
        """When each step was done, by our clock."""
        self._offset_s: dict[str, float] = {}
        """Our clock less that of each trainer: the least that was seen."""
        self.addresses: dict[str, str] = {}
        self.ended: list[str] = []
        self.out = self.takeovers = 0

    def begin(self, run: Run) -> None:
        """Start everybody, and wait for the first steps."""
        nodes = self._nodes
        nodes.start_bootstrap()
        nodes.start_trainer("trainer", run, self._folder / "owner", standby=False)
        self._await("trainer")
        invited = {role: self._invitation(role) for role in ("train", "serve")}
        settings = run.settings().replace("[train]\n", "[train]\nstandby = true\n")
        about = f'role = "trainer"\ninvite = "{invited["train"]}"\n'
        state = json.dumps(str(self._folder / "standby"))
        nodes.start("standby", TRAINER, f"{nodes.joining}{about}state = {state}\n{settings}")
        serves = f'device = "emulated"\nemulated_forward_s = {FORWARD_S}\n'
        for number in range(STAGES * REPLICAS):
            voter = f'invite = "{invited["serve"]}"\n' if number == 0 else ""
            place = f"{voter}[serve]\nstage = {number % STAGES}\n{serves}"
            self._await(nodes.start_server(place))
        waits = f'{nodes.joining}role = "stage"\n[serve]\nrun = "{NOBODYS}"\n{serves}'
        nodes.start("waiting", FIRST_SERVER, waits)
        for name in ("standby", "waiting"):
            self._await(name)
        while len(self._steps) < WARM_UP_STEPS:
            self.listen(1.0)
            if self.ended:
                raise RunFailed(f"{', '.join(self.ended)} ended before any attack")

    def listen(self, seconds: float) -> tuple[float, float]:
        """Take what is said for so long; returns when that began and ended."""
        begun_s = time.monotonic()
        while (left_s := begun_s + seconds - time.monotonic()) > 0:
            if (heard := self._listener.next(left_s)) is not None:
                self._take(*heard)
        return begun_s, time.monotonic()

    def rate(self, spans: list[tuple[float, float]]) -> float:
        """Steps a second, of which parts count."""
        done = sum(self._progress(end_s) - self._progress(begun_s) for begun_s, end_s in spans)
        return done / sum(end_s - begun_s for begun_s, end_s in spans)

    def longest(self, spans: list[tuple[float, float]]) -> float:
        """The longest step that these spans have a part of."""
        times_s = [at_s for at_s, _ in self._steps]
        return max(
            (after - before)
            for before, after in itertools.pairwise(times_s)
            if any(before < end_s and after > begun_s for begun_s, end_s in spans)
        )

    def _progress(self, at_s: float) -> float:
        """How many steps were done, between two by the time that has passed."""
        before = [step for step in self._steps if step[0] <= at_s]
        after = [step for step in self._steps if step[0] > at_s]
        if not before or not after:
            return before[-1][1] if before else after[0][1]
        (begun_s, done), (end_s, more) = before[-1], after[0]
        return done + (more - done) * (at_s - begun_s) / (end_s - begun_s)

    def _await(self, name: str) -> None:
        """Read where a node listens, and the rest of its words from then on."""
        self.addresses[name] = first_match(self._nodes.lines(name), AT)
        self._listener.listen_to(name)

    def _invitation(self, role: str) -> str:
        """A line of the owner."""
        config = self._folder / "trainer.toml"
        command = [sys.executable, "-m", "p2pswarm", "invite", str(config), "--role", role]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **SETTINGS}
        )
        if done.returncode:
            raise RunFailed(f"invite: {done.stderr.strip()}")
        return done.stdout.strip()

    def _take(self, name: str, said: Event | str | Gone) -> None:
        match said:
            case Gone(failed=failed):
                self.ended.append(f"{name} ({failed or 'well'})")
            case Ended(reason=reason):
                self.ended.append(f"the run ({reason})")
            case Stepped(step=step, seconds=seconds):
                seen_s = time.monotonic() - seconds
                offset_s = self._offset_s[name] = min(seen_s, self._offset_s.get(name, seen_s))
                if not self._steps or step > self._steps[-1][1]:
                    self._steps.append((seconds + offset_s, step))
            case Started() if self._steps:
                self.takeovers += 1
            case str() if re.search("out of the run", said):
                self.out += 1


class Hostile:
    """The process of the stranger."""

    def __init__(self, nodes: Nodes, world: World, run: Run, forbidden: Path) -> None:
        names = [n for n in world.addresses if n.startswith("server")]
        trainers = [world.addresses[name] for name in ("trainer", "standby")]
        bootstrap = re.search(r'"(.*)"', nodes.joining)
        assert bootstrap is not None, "the bootstrap node is up"
        servers = ",".join(world.addresses[name] for name in names)
        places = (",".join(trainers), servers)
        command = [sys.executable, STRANGER, bootstrap[1], run.name, forbidden, *places]
        self._process = nodes.start_program("stranger", TRAINER, list(map(str, command)))
        assert self._process.stdout is not None
        self._lines = iter(self._process.stdout.readline, "")

    def begin(self, attack: str) -> None:
        """Have it attack."""
        self._say(attack)
        if next(self._lines, "").strip() != "ready":
            raise RunFailed("the stranger ended")

    def end(self) -> Counter[str]:
        """Have it stop; what it was answered."""
        self._say("")
        return Counter(json.loads(next(self._lines)))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def attacked(world: World, hostile: Hostile, name: str, options: argparse.Namespace) -> Row:
    """One row."""
    row = Row(name, (ATTACKS[name].__doc__ or "").strip())
    world.ended, world.out, world.takeovers = [], 0, 0
    answers: Counter[str] = Counter()
    calm = [world.listen(options.seconds)]
    hurt = []
    for _ in range(options.rounds):
        hostile.begin(name)
        begun_s, _ = world.listen(options.seconds)
        answers += hostile.end()
        hurt.append((begun_s, world.listen(SETTLES_S)[1]))
        calm.append(world.listen(options.seconds))
    world.listen(SETTLES_S)  # the step that ends after the last calm
    row.calm_steps_per_s, row.steps_per_s = world.rate(calm), world.rate(hurt)
    row.share = row.steps_per_s / max(row.calm_steps_per_s, 1e-9)
    row.longest_s = world.longest(hurt)
    row.ended, row.out, row.takeovers = world.ended, world.out, world.takeovers
    row.answers = dict(answers)
    row.judge()
    return row


def rows(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """A row for each attack, against one run."""
    text = folder / "text"
    text.mkdir()
    (text / "numbers.py").write_text(
        "".join(f"{number} squared is {number**2}\n" for number in range(20_000))
    )
    run = Run(
        name="open",
        data=text,
        steps=10**6,
        stages=STAGES,
        min_replicas=REPLICAS,
        d_model=64,
        layers=2,
        heads=2,
        sequence_length=64,
        microbatches=16,
        rows=2,
        emulated=True,
        strangers="compute",
    )
    forbidden = folder / "forbidden"
    with Nodes(Site(), folder, options.patience_s) as nodes:
        world = World(nodes, folder)
        world.begin(run)
        hostile = Hostile(nodes, world, run, forbidden)
        for name in options.only:
            row = attacked(world, hostile, name, options)
            if forbidden.exists():
                row.broken.append("wrote where it may not")
            yield row


def main() -> int:
    """Print a row for each attack."""
    options = _options()
    found = []
    with contextlib.ExitStack() as places:
        folder = options.keep or Path(places.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for row in rows(options, folder):
                found.append(row)
                print(row.line(), flush=True)
        except RunFailed as error:
            print(f"error: {error}")
            return 1
    write_json(options.json, [asdict(row) for row in found])
    held = sum(not row.broken for row in found)
    print(f"{held} of {len(found)} hold; {sum(bool(row.ended) for row in found)} ended something")
    return 0 if held == len(found) else 1


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    names = ",".join(ATTACKS)
    parser.add_argument("--only", default=names, type=lambda text: text.split(","))
    parser.add_argument("--seconds", type=float, default=8.0, help="of each calm and attack")
    parser.add_argument("--rounds", type=int, default=2, help="attacks of each kind")
    parser.add_argument("--patience-s", type=float, default=3600.0)
    parser.add_argument("--keep", type=Path, help="a folder for all that the processes write")
    options = parser.parse_args()
    if unknown := [name for name in options.only if name not in ATTACKS]:
        parser.error(f"no attack is named {unknown[0]}: there is {names}")
    return options


if __name__ == "__main__":
    sys.exit(main())
