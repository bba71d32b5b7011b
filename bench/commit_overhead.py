"""What the end of a step costs: from the last count to the first microbatch of the next.

Four stages of four servers, a trainer and a bootstrap node, every one a process through the real
command line. The trainer's coordinator writes down when it hears and asks what; medians count:

    average   from the order to reduce until the last member holds the reduced gradient
    decide    from there to the commit: the record is made, signed, written and accepted by voters
    launch    from the commit to the first microbatch of the next step
    commit    from the commit until the last member has applied it; the next step has begun then

`ledger, seal and commit` is decide + launch, as a share of a step. All the processes share this
machine: on one with fewer cores than servers, `average` and `commit` measure the waiting for them.

    python bench/commit_overhead.py --json commit.json
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from swarm_processes import TRAINER, Nodes, Run, RunFailed, Site, events, steady

from p2pswarm.cli import main as p2pswarm
from p2pswarm.run.messages.step import Committed, Reduced
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.outputs import Action
from p2pswarm.trainer.coordinator_io import coordinator_io as coordination
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import RunFinished

PARTS = "average", "decide", "launch", "commit"
Times = dict[str, float]


class TimedCoordinator(Coordinator):
    """Writes down when a step is reduced, committed and followed by the next one."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]  # passed on as they are
        self.times: dict[int, Times] = {}

    def on_reduction(self, by: Incarnation, generation: int, answer: Reduced, now_s: float) -> None:
        """Hear a member that holds its stage's reduced gradient: the last one counts."""
        self._at(self.step)["averaged"] = time.monotonic()
        super().on_reduction(by, generation, answer, now_s)

    def on_commit_answer(self, by: Incarnation, step: int, answer: Committed, now_s: float) -> None:
        """Hear a member that has applied a commit: the last one counts."""
        self._at(step)["committed"] = time.monotonic()
        super().on_commit_answer(by, step, answer, now_s)

    def drain(self) -> list[Action]:
        """Note the first of each kind in a step."""
        drained = super().drain()
        for action in drained:
            match action:
                case act.Launch():
                    self._at(action.step).setdefault("launch", time.monotonic())
                case act.SendReduce():
                    self._at(action.message.step).setdefault("reduce", time.monotonic())
                case act.SendCommit():
                    self._at(action.message.step).setdefault("commit", time.monotonic())
                case RunFinished():
                    print(json.dumps({"times": self.times}), file=sys.stderr, flush=True)
        return drained

    def _at(self, step: int) -> Times:
        return self.times.setdefault(step, {})


def trainer(arguments: list[str]) -> int:
    """Run the trainer's process."""
    coordination.Coordinator = TimedCoordinator  # type: ignore[misc]  # a bench may look inside
    return p2pswarm(["node", *arguments])


def spans(times: dict[int, Times]) -> Iterator[Times]:
    """The parts of each step that has a next one, and the step itself."""
    for step, at in sorted(times.items()):
        after = times.get(step + 1, {})
        if {"launch", "reduce", "averaged", "commit", "committed"} <= set(at) and "launch" in after:
            yield {
                "average": at["averaged"] - at["reduce"],
                "decide": at["commit"] - at["averaged"],
                "launch": after["launch"] - at["commit"],
                "commit": at["committed"] - at["commit"],
                "step": after["launch"] - at["launch"],
            }


def measure(run: Run, options: argparse.Namespace, folder: Path) -> dict[int, Times]:
    """The times of a whole run."""
    with Nodes(Site(), folder, options.patience_s) as nodes:
        nodes.start_bootstrap()
        settings = f'listen = "127.0.0.1:0"\nleave_at_eof = true\n{nodes.joining}role = "trainer"\n'
        config = nodes.write("trainer", settings + run.settings())
        command = [sys.executable, __file__, "--trainer", "--config", str(config)]
        nodes.start_program("trainer", TRAINER, command)
        for _ in range(run.stages * run.min_replicas):
            nodes.start_server('[serve]\nthreads = 1\ndevice = "cpu"\n')
        told = events(nodes.lines("trainer"))
        steady("swarm", told, 1, run.steps - 1, lambda: None)
        for _ in told:
            pass  # to its end
        log = (folder / "trainer.log").read_text().splitlines()
    found = next(line for line in log if line.startswith('{"times"'))
    return {int(step): at for step, at in json.loads(found)["times"].items()}


def report(run: Run, times: dict[int, Times], options: argparse.Namespace) -> None:
    """A table, the share, the file."""
    whole = list(spans(times))[1:]  # the first step waits for everything to be warm
    if not whole:
        raise RunFailed("too few steps to measure one")
    median = {name: statistics.median(each[name] for each in whole) for name in (*PARTS, "step")}
    share = statistics.median((each["decide"] + each["launch"]) / each["step"] for each in whole)
    gap = statistics.median(
        (each["average"] + each["decide"] + each["launch"]) / each["step"] for each in whole
    )
    table = Table("", "ms", "of the step", box=None)
    for name, seconds in median.items():
        table.add_row(name, f"{1e3 * seconds:.1f}", f"{seconds / median['step']:.1%}")
    console = Console(width=100)
    console.print(f"{run.stages} stages of {run.min_replicas}, {len(whole)} steps, medians")
    console.print(table)
    console.print(f"ledger, seal and commit {share:.2%} of a step; with averaging {gap:.1%}")
    if options.json:
        figures = {"share": share, "with_averaging": gap, "median_s": median, "steps": len(whole)}
        options.json.write_text(json.dumps(figures) + "\n")


def main() -> int:
    """Measure, print, write."""
    options = _options()
    run = Run(
        name="commit",
        steps=options.steps,
        stages=options.stages,
        min_replicas=options.replicas,
        d_model=options.d_model,
        layers=options.stages,
        sequence_length=options.sequence_length,
        rows=2,
        microbatches=options.microbatches,
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            report(run, measure(run, options, Path(folder)), options)
    except RunFailed as error:
        print(f"error: {error}")
        return 1
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--microbatches", type=int, default=64, help="a step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--patience-s", type=float, default=900.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--trainer"]:
        sys.exit(trainer(sys.argv[2:]))
    sys.exit(main())
