"""Trains several runs on the same microbatches from the same first weights, in one process.

They take turns, a step each: so all see the same machine.
"""

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from results import command_line

from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.sources import files_of
from p2pswarm.data.text_files import load_corpus
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig

EVALUATED = 64  # held-out microbatches
TOLD_EVERY = 20  # steps


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one run."""

    held_out: float
    """Nats a token, in the run's own precision."""
    late: float
    """The mean training loss of the last quarter of the steps."""
    step_s: float
    """The median: of the processor's time on a CPU, else of the clock's."""


def base_run(options: argparse.Namespace) -> RunConfig:
    """The run that the options describe."""
    return RunConfig(
        steps=options.steps,
        seed=options.seed,
        model=ModelConfig(
            d_model=options.d_model,
            layers=options.layers,
            heads=options.d_model // 64 or 1,
            sequence_length=options.sequence_length,
        ),
        batch=BatchConfig(microbatches=options.microbatches, rows=options.rows),
        optimizer=OptimizerConfig(learning_rate=options.learning_rate),
    )


def train_side_by_side(
    ways: Mapping[str, RunConfig], options: argparse.Namespace
) -> dict[str, Outcome]:
    """Train them all, and tell the losses now and then."""
    torch.set_num_threads(options.threads)
    corpus = load_corpus(
        files_of(options.text, tuple(options.suffixes)),
        held_out_share=0.1,
        seed=base_run(options).seed,
        shape=(options.rows, options.sequence_length),
    )
    device = torch.device(options.device)
    clock_s = time.process_time if device.type == "cpu" else time.perf_counter
    loops = {name: ReferenceTrainer(run, device) for name, run in ways.items()}
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(options.steps):
        numbers = range(step * options.microbatches, (step + 1) * options.microbatches)
        microbatches = [torch.from_numpy(corpus.microbatch(number)) for number in numbers]
        for name, loop in loops.items():
            begun_s = clock_s()
            losses[name].append(statistics.fmean(loop.add_all(microbatches)))
            loop.commit(learning_rate(ways[name], step))
            took_s[name].append(clock_s() - begun_s)
        if (step + 1) % TOLD_EVERY == 0:
            mean = {name: statistics.fmean(each[-TOLD_EVERY:]) for name, each in losses.items()}
            told = "  ".join(f"{name} {loss:.4f}" for name, loss in mean.items())
            print(f"step {step + 1}: {told}", flush=True)
    return {
        name: Outcome(
            _held_out(loop, corpus),
            statistics.fmean(losses[name][3 * options.steps // 4 :]),
            statistics.median(took_s[name]),
        )
        for name, loop in loops.items()
    }


def _held_out(loop: ReferenceTrainer, corpus: Corpus) -> float:
    microbatches = ((torch.from_numpy(corpus.held_out_batch(n)), n) for n in range(EVALUATED))
    return statistics.fmean(loop.evaluate(*each) for each in microbatches)


def parser_of(description: str, text: Path | None = None) -> argparse.ArgumentParser:
    """The options that describe text, model, batch and machine; `text`: where none is named."""
    parser = command_line(description)
    parser.add_argument(
        "--text", type=Path, default=text, required=text is None, help="as train.data"
    )
    parser.add_argument("--suffixes", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    return parser
