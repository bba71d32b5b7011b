"""One run on hosts of the WAN lab, whose weights are compared with those of a plain loop.

Every node is a process on a host of its own: a network namespace with the kernel's own TCP
(`tests/wanlab`). What is done to the hosts and to the roads between them is the bench's part.
"""

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactness import WANTED, compare, tensors, train_plainly, written
from results import write_json
from swarm_processes import STANDARD_LIBRARY, Nodes, Run, RunFailed, Site
from wan_lab import Lab, LabUnavailable, Link


@dataclass(frozen=True, slots=True)
class LabRun:
    """What a bench plays with."""

    lab: Lab
    nodes: Nodes
    run: Run
    folder: Path
    """What all processes write."""


def play_and_compare(
    run: Run,
    roads: tuple[int, Link],
    options: argparse.Namespace,
    play: Callable[[LabRun], dict[str, Any]],
    nodes_at: Callable[[Site, Path, float], Nodes] = Nodes,
) -> int:
    """Play a run to its end, compare, print, write; the exit code.

    `roads`: how many hosts there are, and the link between any two. `play` returns its figures when
    the trainers have left; it may raise RunFailed. `nodes_at`: how processes are started.
    """
    hosts, link = roads
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ours, theirs = (folder / f"{kind}.safetensors" for kind in ("swarm", "plain"))
        run = dataclasses.replace(run, weights=str(ours), data=options.data)
        try:
            with (
                Lab(hosts, link) as lab,
                nodes_at(Site("lab", lab.address, lab.enter), folder, options.patience_s) as nodes,
            ):
                figures = play(LabRun(lab, nodes, run, folder))
            train_plainly(run, theirs, options.patience_s)
            relative, _, _ = compare(written(folder), dict(tensors(theirs)))
        except LabUnavailable as reason:
            print(reason)
            return 2
        except RunFailed as error:
            print(f"error: {error}")
            return 1
    figures = {"relative_difference": relative, **figures}
    print(json.dumps(figures))
    write_json(options.json, figures)
    return 0 if relative <= WANTED else 1


def add_options(parser: argparse.ArgumentParser, patience_s: float) -> None:
    """What `play_and_compare` reads."""
    parser.add_argument("--data", type=Path, default=STANDARD_LIBRARY, help="text to train on")
    parser.add_argument("--patience-s", type=float, default=patience_s)
