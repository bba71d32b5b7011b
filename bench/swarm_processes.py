"""A swarm as processes on this machine, each started by the real command line, for other benches.

Every node is `python -m p2pswarm.node --config FILE`; its stdin is a pipe that we hold, so that it
leaves when we die. What a bench wants to know it reads from the trainer's events, which carry the
trainer's own clock, and from the operating system: processor seconds as the kernel counts them.
"""

import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from proc import cpu_s

from p2pswarm.progress.event_lines import from_line
from p2pswarm.progress.events import Ended, Event, Stepped
from p2pswarm.settings.config import OptimizerConfig

ROOT = Path(__file__).resolve().parent.parent

TRAINER, BOOTSTRAP, FIRST_SERVER = 0, 1, 2
"""Which host of a site a node lives on."""
NODE = (sys.executable, "-m", "p2pswarm.node")
PLAIN = (sys.executable, str(ROOT / "bench" / "plain_training.py"))
STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
"""Text that is wherever Python is."""
CHECK = ROOT / "bench" / "check_chain.py"
SERVE = '[serve]\nthreads = 1\ndevice = "cpu"\n'
"""The settings of a server."""
LEAVE_S = 6.0  # a node promises 5
PATHS = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
SETTINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": PATHS}
GROUP_FRAME = " |+-"  # what frames the lines of an exception group
T = TypeVar("T")


class RunFailed(RuntimeError):
    """The swarm did not train; the text is the last word of the process at fault."""


def _no_entrance(_: int) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Site:
    """Where the processes run."""

    name: str = "localhost"
    address: Callable[[int], str] = lambda _: "127.0.0.1"
    enter: Callable[[int], Sequence[str]] = _no_entrance
    """What to write before a command so that it runs on that host."""
    node: Sequence[str] = NODE
    """The program of a node: another one registers a model of its own first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What is trained; the defaults are the program's."""

    name: str
    steps: int
    stages: int = 2
    min_replicas: int = 1
    d_model: int = 512
    layers: int = 4
    heads: int = 0
    """0: 64 features a head."""
    sequence_length: int = 256
    microbatches: int = 16
    rows: int = 2
    window: int = 0
    family: str = "gpt"
    tie: bool | None = None
    """Whether embedding and head are one tensor; None: as the model says."""
    precision: str = "full"
    weight_storage: str = "full"
    dtype: str = "float32"
    delay: int = 0
    """Of so many steps."""
    spot_check_share: float = 0.0
    """The share of microbatches that two servers compute."""
    optimizer: str = "adamw"
    schedule: Mapping[str, str | float] = field(default_factory=dict)
    """Further settings of `run.optimizer`."""
    codec: str = "bf16"
    """Of activations."""
    backward: str = ""
    """The codec of gradients; empty: as of activations."""
    averaging: str = "raw"
    """How sums within a stage are averaged; names with commas between them: of each stage."""
    averaging_rank: int = 8
    boundary: str = "none"
    """Modules at cuts."""
    boundary_width: int = 0
    choice: str = "fixed"
    """measured: the coordinator chooses of the whole ladder, also before the last stage."""
    start: str = "random"
    begin_from: str = ""
    """A checkpoint whose weights and moments it begins with."""
    checkpoints: str = ""
    """Where one is written at the end of a run; empty: none is."""
    objective: str = "tokens"
    adapter: int = 0
    """The rank of adapters, which train alone; 0: the whole model trains."""
    base: str = "full"
    """How frozen weights are kept."""
    weights: str = ""
    tokenizer: str = "bytes"
    strangers: str = "lead"
    """What peers may do that the owner has not invited: "compute" in an open run."""
    emulated: bool = False
    """Whether servers only take the time of computing."""
    data: Path = STANDARD_LIBRARY

    def _codecs(self) -> str:
        names = self.averaging.split(",")
        averaging = f"averaging = {json.dumps(names if len(names) > 1 else self.averaging)}\n"
        averaging += f"averaging_rank = {self.averaging_rank}\n"
        if self.choice == "measured":
            coarsest = 'coarsest = ["dither4", "dither3"]\nlast_boundary = "dither4"'
            return f'choice = "measured"\n{coarsest}\n{averaging}'
        both = json.dumps(self.codec), json.dumps(self.backward or self.codec)
        return "activation = {}\ngradient = {}\n{}".format(*both, averaging)

    def _schedule(self) -> str:
        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in self.schedule.items())

    @property
    def step_tokens(self) -> int:
        """Tokens a step."""
        return self.microbatches * self.rows * self.sequence_length

    def settings(self) -> str:
        """As the trainer's TOML has it."""
        text = json.dumps  # a JSON string is a TOML string
        return f"""
[train]
data = {text(str(self.data))}
suffixes = {text([".py"] if self.data.is_dir() else [])}
tokenizer = {text(self.tokenizer)}
progress = "json"
weights = {text(self.weights)}
begin_from = {text(self.begin_from)}
[run]
name = {text(self.name)}
stages = {self.stages}
steps = {self.steps}
min_replicas = {self.min_replicas}
strangers = {text(self.strangers)}
emulated = {text(self.emulated)}
precision = {text(self.precision)}
weight_storage = {text(self.weight_storage)}
delay = {self.delay}
spot_check_share = {self.spot_check_share}
base = {text(self.base)}
objective = {text(self.objective)}
start = {text(self.start)}
{f"adapter = {{ rank = {self.adapter} }}" if self.adapter else ""}
[run.model]
family = {text(self.family)}
{"" if self.tie is None else f"tie = {text(self.tie)}"}
d_model = {self.d_model}
layers = {self.layers}
heads = {self.heads or max(1, self.d_model // 64)}
sequence_length = {self.sequence_length}
dtype = {text(self.dtype)}
boundary = {text(self.boundary)}
boundary_width = {self.boundary_width}
[run.optimizer]
name = {text(self.optimizer)}
{self._schedule()}
[run.batch]
microbatches = {self.microbatches}
rows = {self.rows}
window = {self.window}
evaluate_every = 0
[checkpoint]
target = {text(self.checkpoints)}
every_steps = {max(1, self.steps // 2)}
[run.codecs]
{self._codecs()}"""


class Nodes:
    """The processes of one swarm; all gone at the end of the block."""

    def __init__(self, site: Site, folder: Path, patience_s: float) -> None:
        self._site = site
        self._folder = folder
        self._all: dict[str, subprocess.Popen[str]] = {}
        self._servers = 0
        self.readers: list[threading.Thread] = []
        """Read the nodes to their ends; no pipe is closed before they are done."""
        self.joining = ""
        """The settings that make a node join this swarm."""
        self._late = threading.Timer(patience_s, self.kill_all)
        self._late.daemon = True
        self._late.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._late.cancel()
        for node in self._all.values():
            node.terminate()
        for node in self._all.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(LEAVE_S)
        self.kill_all()
        for reader in self.readers:
            reader.join()
        for node in self._all.values():
            node.wait()
            for pipe in (node.stdin, node.stdout):
                assert pipe is not None
                pipe.close()

    def start(self, name: str, host: int, settings: str) -> subprocess.Popen[str]:
        """A node on `host`, with these settings and what every node here has."""
        listen = f'listen = "{self._site.address(host)}:0"\nleave_at_eof = true\n'
        config = self.write(name, listen + settings)
        return self.start_program(name, host, [*self._site.node, "--config", str(config)])

    def start_bootstrap(self) -> None:
        """The node that all others join through."""
        self.start("bootstrap", BOOTSTRAP, 'role = "bootstrap"\n')
        address = first_match(self.lines("bootstrap"), r"at (\S+), ready")
        self.joining = f'bootstrap = ["{address}"]\n'

    def start_trainer(
        self, name: str, run: Run, state: Path, *, standby: bool, host: int = TRAINER
    ) -> None:
        """A trainer with a folder for what outlives it; it founds the run, or stands by for it."""
        mode = "[train]\nstandby = true\n" if standby else "[train]\n"
        about = f'role = "trainer"\nstate = {json.dumps(str(state))}\n'
        settings = run.settings().replace("[train]\n", mode)
        self.start(name, host, self.joining + about + settings)

    def start_server(self, settings: str) -> str:
        """One more server, on a host of its own; its name."""
        name = f"server {self._servers}"
        host = FIRST_SERVER + self._servers
        self._servers += 1
        self.start(name, host, f'{self.joining}role = "stage"\n{settings}')
        return name

    def start_program(self, name: str, host: int, command: Sequence[str]) -> subprocess.Popen[str]:
        """Any program, with one torch thread."""
        with self._log(name).open("wb") as stderr:
            self._all[name] = subprocess.Popen(
                [*self._site.enter(host), *command],
                cwd=ROOT,
                env={**os.environ, **SETTINGS},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                text=True,
            )
        return self._all[name]

    def write(self, name: str, settings: str) -> Path:
        """A settings file."""
        config = self._folder / f"{name}.toml"
        config.write_text(settings)
        return config

    def kill(self, name: str) -> None:
        """SIGKILL: it has no chance to say goodbye."""
        self._all[name].kill()

    def wait(self, name: str) -> None:
        """Return when a node has ended."""
        self._all[name].wait()

    def kill_all(self) -> None:
        """End all at once."""
        for node in self._all.values():
            node.kill()

    def lines(self, name: str) -> Iterator[str]:
        """What a node says, until it ends; then RunFailed with its last word, if it failed."""
        node = self._all[name]
        assert node.stdout is not None
        yield from iter(node.stdout.readline, "")  # of the pipe itself, `yield from` closes it
        if node.wait():
            log = self._log(name).read_text(errors="replace").splitlines()
            words = [line.strip(GROUP_FRAME) for line in log if line.strip(GROUP_FRAME)]
            raise RunFailed(f"{name} ended early: {words[-1] if words else 'without a word'}")

    @property
    def pids(self) -> dict[str, int]:
        """Of each living node."""
        return {name: node.pid for name, node in self._all.items() if node.poll() is None}

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds that each living node has taken so far, user and system."""
        return {name: cpu_s(node.pid) for name, node in self._all.items() if node.poll() is None}

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


@contextlib.contextmanager
def swarm(
    site: Site,
    run: Run,
    servers: Sequence[str],
    patience_s: float = 900.0,
    *,
    trains: bool = True,
) -> Iterator[Nodes]:
    """A `bootstrap` node, a `trainer`, and a server for each of these TOML texts.

    `trains`: False leaves the trainer out, for one that starts its own. Whatever takes longer
    than `patience_s` is killed.
    """
    with tempfile.TemporaryDirectory() as folder, Nodes(site, Path(folder), patience_s) as nodes:
        nodes.start_bootstrap()
        if trains:
            nodes.start("trainer", TRAINER, nodes.joining + 'role = "trainer"\n' + run.settings())
        for settings in servers:
            nodes.start_server(settings)
        yield nodes


@contextlib.contextmanager
def plain(run: Run, flags: Sequence[str] = (), patience_s: float = 900.0) -> Iterator[Nodes]:
    """The same run in one process, `plain`, in an ordinary loop."""
    with tempfile.TemporaryDirectory() as folder, Nodes(Site(), Path(folder), patience_s) as nodes:
        config = nodes.write("plain", run.settings())
        nodes.start_program("plain", TRAINER, [*PLAIN, "--config", str(config), *flags])
        yield nodes


def events(lines: Iterator[str]) -> Iterator[Event]:
    """What a trainer tells; RunFailed if its run failed."""
    for line in lines:
        said = parsed(line)
        if isinstance(said, str):
            continue
        if isinstance(said, Ended) and said.failed:
            raise RunFailed(said.reason)
        yield said


def parsed(line: str) -> Event | str:
    """The event of a line, or the line: what a node says before its run is for people."""
    try:
        return from_line(line).event
    except ValueError:
        return line


def steady(
    name: str, told: Iterator[Event], warmup_steps: int, steps: int, sample: Callable[[], T]
) -> tuple[tuple[float, T], tuple[float, T]]:
    """The trainer's clock and a sample, at the end of the warm-up and `steps` later."""
    begun: tuple[float, T] | None = None
    for event in told:
        if not isinstance(event, Stepped):
            continue
        here = (event.seconds, sample())
        print(f"  {name}: step {event.step}, {event.seconds:.1f} s", flush=True)
        if event.step == warmup_steps:
            begun = here
        if begun is not None and event.step == warmup_steps + steps:
            return begun, here
    raise RunFailed(f"{name} ended before step {warmup_steps + steps}")


def first_match(lines: Iterator[str], pattern: str) -> str:
    """The first group of `pattern` in the first line that has it."""
    for line in lines:
        if found := re.search(pattern, line):
            return found[1]
    raise RunFailed(f"no line matches {pattern}")


@dataclass(frozen=True, slots=True)
class Gone:
    """A node has ended."""

    failed: RunFailed | None
    """Its last word, if it did not end well; a node that was killed did not."""


Said = Event | str | Gone
"""A line that is no event is for people, and a text here."""


class NodeListener:
    """The words of several nodes in one queue: a thread reads each of them."""

    def __init__(self, nodes: Nodes, keep: Path | None = None) -> None:
        """`keep`: a folder for all that a node says, with the seconds since now."""
        self.ended: set[str] = set()
        """Who has told the end of its run, even if nobody has taken that from the queue yet."""
        self._nodes = nodes
        self._keep = keep
        self._begun_s = time.monotonic()
        self._said: queue.SimpleQueue[tuple[str, Said]] = queue.SimpleQueue()

    def listen_to(self, name: str) -> None:
        """Read a node to its end."""
        reader = threading.Thread(target=self._read, args=(name,), daemon=True)
        self._nodes.readers.append(reader)
        reader.start()

    def next(self, timeout_s: float | None = None) -> tuple[str, Said] | None:
        """Who said what; None if nobody says anything in time."""
        try:
            return self._said.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _read(self, name: str) -> None:
        failed = None
        try:
            for line in self._nodes.lines(name):
                self._write_down(name, line)
                said = parsed(line)
                if isinstance(said, Ended):
                    self.ended.add(name)
                self._said.put((name, said))
        except RunFailed as error:
            failed = error
        self._said.put((name, Gone(failed)))

    def _write_down(self, name: str, line: str) -> None:
        if self._keep is not None:
            with (self._keep / f"{name}.said").open("a") as file:
                file.write(f"{time.monotonic() - self._begun_s:.2f} {line}")


def checked(file: Path, run: Run | None = None) -> dict[str, Any]:
    """What the independent script says of a chain file; RunFailed unless all of it is right.

    `run`: it computes the scale of each step again.
    """
    numbers = []
    if run is not None:
        tokens = run.microbatches * run.rows * run.sequence_length
        numbers = [str(run.delay), str(tokens), str(OptimizerConfig().clip_norm)]
    made = subprocess.run(
        [sys.executable, CHECK, file, *numbers], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise RunFailed(f"{file.name}: {made.stderr.strip()}")
    said: dict[str, Any] = json.loads(made.stdout)
    return said
