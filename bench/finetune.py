"""An adapter on a model of transformers: exact after kills, and what it costs.

    python bench/finetune.py --json finetune.json                  # a tiny gpt_neox, random weights
    python bench/finetune.py --model FOLDER --stages 3 --base nf4 --kill-every 5

Two servers a stage (`--replicas`), every process through the real command line, learn prompts and
completions by a rule; servers are killed by SIGKILL and replaced. Told are

* the relative difference of the adapter's weights from a plain loop's, in one process, which
  divides each step's gradient by that step's targets;
* the bytes that a member of each stage sends to average a step, while none has died, over
  4 bytes x parameters x 2 (members - 1) / members, in float32;
* the bytes of frozen tensors in the last checkpoint;
* the targets of all steps.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from pathlib import Path

from exactness import (
    WANTED,
    Killer,
    MicrobatchCounts,
    compare,
    line_with_kills,
    made_chats,
    tensors,
    train_on,
    train_plainly,
    written,
)
from results import show, write_json
from swarm_processes import SERVE, Run, RunFailed, Site

from p2pswarm.data.samples.target_marks import targets_in
from p2pswarm.node.run.run_text import read_corpus, settled
from p2pswarm.settings.parser import load

COUNTING = Path(__file__).with_name("counting_node.py")
NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
"""A family that computes in the model's dtype: the norms of a llama are float32 always, and round
what is added in another order to other numbers (1e-10 after 50 steps)."""
ITEM_BYTES = {"float32": 4, "float64": 8}


def model_in(folder: Path, given: Path | None) -> Path:
    """The folder of the model: the one that was named, or a tiny one's."""
    if given is not None:
        return given
    place = folder / "gpt_neox"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(NEOX))
    return place


def run_of(options: argparse.Namespace, folder: Path) -> Run:
    """What is trained."""
    model = model_in(folder, options.model)
    pretrained = any(model.glob("*.safetensors"))
    return Run(
        name="finetune",
        steps=options.steps,
        stages=options.stages,
        min_replicas=options.replicas,
        family=f"hf:{model}",
        start="pretrained" if pretrained else "random",
        sequence_length=64,
        microbatches=24,
        rows=4,
        dtype=options.dtype,
        codec="raw",
        adapter=options.rank,
        base=options.base,
        weights=str(folder / "swarm.safetensors"),
        checkpoints=str(folder / "checkpoints"),
        data=made_chats(folder),
    )


def swarm_of(
    run: Run, options: argparse.Namespace, counts: Path
) -> tuple[Killer, MicrobatchCounts]:
    """The swarm's run, whose servers count what they send."""
    serve = SERVE.replace("cpu", options.device)
    serve += f"checkpoint_targets = [{json.dumps(run.checkpoints)}]\n"
    if run.start == "pretrained":
        serve += f"pretrained = {json.dumps(run.family.removeprefix('hf:'))}\n"
    node = (sys.executable, str(COUNTING), "--count", str(counts))
    return train_on(Site(node=node), run, serve, options)


def averaged_bytes(counts: Path, members: int, before: int) -> float:
    """What a member of each stage sends in a step: the median of steps with all of them."""
    steps: Counter[int] = Counter()
    for line in counts.read_text().splitlines():
        step, size = map(int, line.split())
        if step < before:
            steps[step] += size
    return statistics.median(steps.values()) / members


def base_bytes(checkpoints: Path, trained: set[str]) -> int:
    """The bytes of tensors in the last checkpoint that do not train."""
    kinds = ("", "exp_avg.", "exp_avg_sq.")
    own = {f"{kind}{name}" for kind in kinds for name in trained}
    folders = sorted(path for path in checkpoints.iterdir() if any(path.glob("*.safetensors")))
    if not folders:
        raise RunFailed("no checkpoint was written")
    total = 0
    for path in folders[-1].glob("*.safetensors"):
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        for name, about in json.loads(data[8:begin]).items():
            if name != "__metadata__" and name not in own:
                start, stop = about["data_offsets"]
                total += stop - start
    return total


def targets_of(run: Run, folder: Path) -> int:
    """The targets of all steps."""
    config = folder / "run.toml"
    config.write_text(run.settings())
    corpus = read_corpus(settled(load(config)))
    return sum(targets_in(corpus.microbatch(n)) for n in range(run.steps * run.microbatches))


def main() -> int:
    """Train twice, compare, print, write."""
    options = _options()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, counts = run_of(options, folder), folder / "counts"
        try:
            killer, _ = swarm_of(run, options, counts)
            theirs = folder / "plain.safetensors"
            train_plainly(run, theirs, options.patience_s, options.device)
            found, expected = written(folder), dict(tensors(theirs))
            relative, _, _ = compare(found, expected)
            kept = base_bytes(Path(run.checkpoints), set(found))
        except RunFailed as error:
            print(f"error: {error}")
            return 1
        parameters = sum(tensor.numel() for tensor in found.values())
        share = 2 * (options.replicas - 1) / options.replicas
        due = ITEM_BYTES[options.dtype] * parameters * share
        sent = averaged_bytes(counts, options.replicas, min(killer.killed) - 1)
        figures = {
            "relative_difference": relative,
            "averaged_bytes_per_step": sent,
            "averaged_over_due": sent / due,
            "base_bytes_in_checkpoint": kept,
            "targets": targets_of(run, folder),
            "parameters": parameters,
            "kills": len(killer.killed) + (killer.trainers.kills if killer.trainers else 0),
        }
        shutil.rmtree(run.checkpoints, ignore_errors=True)
    show(("figure", "value"), [(name, f"{value:,.4g}") for name, value in figures.items()])
    write_json(options.json, figures)
    return 0 if relative <= WANTED and not kept else 1


def _options() -> argparse.Namespace:
    parser = line_with_kills(__doc__)
    parser.add_argument("--model", type=Path, help="a folder with a config.json, perhaps weights")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--base", default="full", choices=("full", "bf16", "int8", "nf4"))
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
