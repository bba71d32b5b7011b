"""A new run from the weights and moments of another, beside a plain loop that keeps its optimizer.

    python bench/continuation.py --json continuation.json

A first run trains an adapter on a tiny gpt_neox, and saves a checkpoint. A second begins from it
with another rate, schedule, batch and cut. Servers are killed by SIGKILL and replaced in both. Told
are the relative difference of the adapter's weights from the plain loop's, and the kills.
"""

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path

from exactness import WANTED, compare, tensors, train_on, train_plainly, written
from finetune import run_of
from results import command_line, show, write_json
from swarm_processes import SERVE, Run, RunFailed, Site


def second_of(first: Run, folder: Path) -> Run:
    """What begins where the first run ends."""
    return dataclasses.replace(
        first,
        name="second",
        stages=first.stages + 1,
        microbatches=16,
        rows=3,
        schedule={"learning_rate": 1e-3, "schedule": "linear", "warmup_steps": 5},
        weights=str(folder / "swarm-second.safetensors"),
        begin_from=first.checkpoints,
        checkpoints="",
    )


def main() -> int:
    """Train twice in a swarm and in a loop, compare, print, write."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = run_of(options, folder)
        second = second_of(first, folder)
        settings = folder / "first.toml"
        settings.write_text(first.settings())
        serve = SERVE + f"checkpoint_targets = ['{first.checkpoints}']\n"
        try:
            killed = [len(train_on(Site(), first, serve, options)[0].killed)]
            killed.append(len(train_on(Site(), second, serve, options)[0].killed))
            theirs = folder / "plain.safetensors"
            more = ("--former", str(settings))
            train_plainly(second, theirs, options.patience_s, more=more)
            relative, _, _ = compare(written(folder), dict(tensors(theirs)))
        except RunFailed as error:
            print(f"error: {error}")
            return 1
    figures = {"relative_difference": relative, "kills": sum(killed), "steps": 2 * options.steps}
    show(("figure", "value"), [(name, f"{value:,.4g}") for name, value in figures.items()])
    write_json(options.json, figures)
    return 0 if relative <= WANTED else 1


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument(
        "--stages", type=int, default=2, help="of the first; the second has one more"
    )
    parser.add_argument("--steps", type=int, default=20, help="of each run")
    parser.add_argument("--kill-every", type=int, default=6, help="steps")
    parser.add_argument("--replicas", type=int, default=2, help="servers of each stage")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed and when in a step")
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    parser.set_defaults(
        model=None, rank=4, base="nf4", dtype="float64", trainers=1, kill_trainer_every=0
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
