"""What computing in bfloat16 costs in quality and brings in speed, against the weights' own dtype.

    python bench/precision.py --text docs --d-model 512 --steps 300

Both train the same model on the same microbatches from the same first weights, in one process and
in turns, a step each: so both see the same machine. It prints the training loss now and then, and
at the end the held-out loss of both, computed in each one's own precision, and the time of a step.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pswarm.compute.reference import ReferenceTrainer  # noqa: E402 - found by the line above
from p2pswarm.config import BatchConfig, ModelConfig, OptimizerConfig, RunConfig  # noqa: E402
from p2pswarm.data.corpus import Corpus  # noqa: E402
from p2pswarm.data.text_files import load_corpus  # noqa: E402
from p2pswarm.swarm.schedule import learning_rate  # noqa: E402

EVALUATED = 16  # held-out microbatches
TOLD_EVERY = 20  # steps


def main() -> None:
    """Train both, and compare."""
    options = _options()
    torch.set_num_threads(options.threads)
    full = RunConfig(
        steps=options.steps,
        model=ModelConfig(
            d_model=options.d_model,
            layers=options.layers,
            heads=options.d_model // 64 or 1,
            sequence_length=options.sequence_length,
        ),
        batch=BatchConfig(microbatches=options.microbatches, rows=options.rows),
        optimizer=OptimizerConfig(learning_rate=options.learning_rate),
    )
    ways = {"full": full, "bf16": dataclasses.replace(full, precision="bf16")}
    corpus = load_corpus(
        options.text,
        suffixes=tuple(options.suffixes),
        held_out_share=0.1,
        seed=full.seed,
        shape=(options.rows, options.sequence_length),
    )
    device = torch.device(options.device)
    loops = {name: ReferenceTrainer(run, device) for name, run in ways.items()}
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    losses: dict[str, list[float]] = {name: [] for name in ways}
    for step in range(options.steps):
        numbers = range(step * options.microbatches, (step + 1) * options.microbatches)
        microbatches = [torch.from_numpy(corpus.microbatch(number)) for number in numbers]
        for name, loop in loops.items():
            begun_s = time.perf_counter()
            losses[name].append(statistics.fmean(loop.add_all(microbatches)))
            loop.commit(learning_rate(full, step))
            took_s[name].append(time.perf_counter() - begun_s)
        if (step + 1) % TOLD_EVERY == 0:
            mean = {name: statistics.fmean(each[-TOLD_EVERY:]) for name, each in losses.items()}
            told = "  ".join(f"{name} {loss:.4f}" for name, loss in mean.items())
            print(f"step {step + 1}: {told}", flush=True)
    held_out = {name: _held_out(loop, corpus) for name, loop in loops.items()}
    step_s = {name: statistics.median(each) for name, each in took_s.items()}
    worse = held_out["bf16"] / held_out["full"] - 1
    print(f"held-out loss: full {held_out['full']:.5f}, bf16 {held_out['bf16']:.5f} ({worse:+.3%})")
    faster = step_s["full"] / step_s["bf16"]
    print(f"a step: {step_s['full']:.3f} s, {step_s['bf16']:.3f} s ({faster:.2f} times as fast)")
    if options.json:
        found = {"held_out": held_out, "step_s": step_s, "relative": worse, "steps": options.steps}
        options.json.write_text(json.dumps(found))


def _held_out(loop: ReferenceTrainer, corpus: Corpus) -> float:
    microbatches = (torch.from_numpy(corpus.held_out_batch(n)) for n in range(EVALUATED))
    return statistics.fmean(loop.evaluate(tokens_BS) for tokens_BS in microbatches)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="as train.data")
    parser.add_argument("--suffixes", nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--d-model", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
