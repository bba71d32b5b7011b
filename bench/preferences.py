"""Pairs of answers: exact after kills, and beside TRL's own losses and gradients.

    python bench/preferences.py --json preferences.json
    python bench/preferences.py --kill-every 6 --trainers 2 --kill-trainer-every 14 --rank 4
    python bench/preferences.py --trl FOLDER    # site-packages with trl 1.16, datasets, accelerate

For each of dpo, orpo and simpo two stages of two servers each, every process through the real
command line, learn which of two sums is right; servers are killed by SIGKILL and replaced. Told is
the relative difference of all weights from a plain loop's, in one process, which computes its
references itself.

With `--trl` a tiny llama in float32 gets the loss and the gradients of one batch twice: from TRL's
trainer over its own rows, and from ours over rows that our data made. The policy is not the
reference. TRL's ORPO adds the mean loss of prompts and answers together; beside ours is the loss of
the paper, of TRL's log probabilities of answers and its odds.
"""

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
import torch
from exactness import (
    WANTED,
    compare,
    line_with_kills,
    tensors,
    train_on,
    train_plainly,
    written,
)
from finetune import model_in
from plain_training import scored
from results import show, write_json
from swarm_processes import SERVE, Run, RunFailed, Site
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor

from p2pswarm.data.chats.chat_corpus import sides_of
from p2pswarm.data.samples.pair_corpus import PairCorpus
from p2pswarm.data.sources import files_of
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.preparation import tokenised_run
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.settings.objective import PREFERENCES
from p2pswarm.settings.parser import load

PAIRS = 400
TRL_WANTED = 1e-5  # relative; both compute in float32
BATCH, SHARE = 12, 0.2  # pairs beside TRL, and what of them is held out
LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}


def made_pairs(folder: Path, count: int = PAIRS) -> Path:
    """Rows by a rule: sums, of which one answer is right and the other near it."""
    rng, rows = random.Random(1), []
    for _ in range(count):
        numbers = [rng.randrange(100) for _ in range(rng.choice([2, 2, 3, 9]))]
        answers = [f"{sum(numbers) + wrong}" for wrong in (0, rng.randrange(1, 2_000))]
        rows.append(
            {
                "prompt": " + ".join(map(str, numbers)) + " =",
                "chosen": f" {answers[0]}",
                "rejected": f" {answers[1]}",
            }
        )
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def exactness(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Train by one objective twice, and compare."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["XDG_CACHE_HOME"] = place  # else references of an earlier bench are there
        run = Run(
            name="preferences",
            steps=options.steps,
            stages=2,
            min_replicas=options.replicas,
            d_model=64,
            layers=2,
            heads=2,
            sequence_length=64,
            microbatches=24,
            rows=4,
            dtype=options.dtype,
            codec="raw",
            family=f"hf:{model_in(folder, None)}" if options.rank else "gpt",
            adapter=options.rank,
            objective=name,
            weights=str(folder / "swarm.safetensors"),
            data=made_pairs(folder),
        )
        killer, counts = train_on(Site(), run, SERVE, options)
        theirs = folder / "plain.safetensors"
        train_plainly(run, theirs, options.patience_s)
        relative, _, _ = compare(written(folder), dict(tensors(theirs)))
        return {
            "relative_difference": relative,
            "kills": len(killer.killed) + (killer.trainers.kills if killer.trainers else 0),
            "microbatches": {"counted": counts.counted, "replayed": counts.replayed},
        }


def tokenizer_in(folder: Path) -> Path:
    """A small tokenizer, as transformers writes it."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["1 + 2 = 3, 45 + 67 = 112"] * 4, trainer)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    config["pad_token"] = "<|end|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def llama_in(folder: Path, seed: int) -> Path:
    """A folder with the weights of a tiny llama."""
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - only with --trl

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=300, max_position_embeddings=64, **LLAMA))
    model.save_pretrained(folder)
    return folder


def trained_rows(folder: Path) -> list[dict[str, str]]:
    """The rows that are not held out: all of them are our first microbatch."""
    found = files_of(folder / "pairs.jsonl")
    return [
        json.loads(row) for held_out, row in sides_of(found, SHARE, paired=True) if not held_out
    ]


def ours(name: str, folder: Path, first: Path, policy: Path) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one batch of our rows."""
    corpus, loop = read(name, folder, first)
    if name == "dpo":
        corpus = scored(corpus, loop)
    _, loop = read(name, folder, policy)
    loss = loop.add(torch.from_numpy(corpus.microbatch(0)), 0)
    named = named_parameters(loop.flat.numbers, loop.flat.blocks)
    return loss, {key: parameter.grad.clone() for key, parameter in named}


def read(name: str, folder: Path, model: Path) -> tuple[PairCorpus, ReferenceTrainer]:
    """The text, and the weights of a folder."""
    settings = folder / f"{name}.toml"
    settings.write_text(
        f'[train]\ndata = "{folder / "pairs.jsonl"}"\ntokenizer = "{folder / "tokenizer"}"\n'
        f'cache = "{folder}"\nheld_out_share = {SHARE}\n[run]\nstart = "pretrained"\n'
        f'model = {{ family = "hf:{model}", sequence_length = 63 }}\nobjective = "{name}"\n'
        f"[run.batch]\nmicrobatches = 1\nrows = {2 * len(trained_rows(folder))}\n"
    )
    config = settled(load(settings))
    tokenizer = tokenizer_of(config)
    assert tokenizer is not None, "it is named"
    run = resolved(tokenised_run(config.run, tokenizer))
    corpus = read_corpus(dataclasses.replace(config, run=run), tokenizer)
    assert isinstance(corpus, PairCorpus), "the objective takes pairs"
    return corpus, ReferenceTrainer(run, rounded=False)


def theirs(name: str, folder: Path, first: Path, policy: Path) -> tuple[float, dict[str, Tensor]]:
    """The same by TRL's trainer."""
    import datasets  # type: ignore[import-not-found]  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    trainer_type, config_type, extra = _of_trl(name)
    shared: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": len(trained_rows(folder)),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "max_length": 64,
        "remove_unused_columns": False,
    }
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    more = {}
    if name == "dpo":
        more["ref_model"] = AutoModelForCausalLM.from_pretrained(first, dtype=torch.float32)
    trainer = trainer_type(
        model=model,
        args=config_type(**shared, **extra),
        train_dataset=datasets.Dataset.from_list(trained_rows(folder)),
        processing_class=AutoTokenizer.from_pretrained(folder / "tokenizer"),
        **more,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    model.eval()
    if name == "orpo":
        chosen, rejected = trainer.concatenated_forward(model, batch)[:2]
        loss = -chosen.mean() - trainer.odds_ratio_loss(chosen, rejected)[0].mean()
    else:
        loss = trainer.compute_loss(model, batch)
    loss.backward()
    return loss.item(), {key: parameter.grad for key, parameter in model.named_parameters()}


def _of_trl(name: str) -> tuple[Any, Any, dict[str, Any]]:
    """The trainer, its settings, and what ours are in them."""
    if name == "dpo":
        from trl import DPOConfig, DPOTrainer  # type: ignore[import-not-found]  # noqa: PLC0415

        return DPOTrainer, DPOConfig, {"beta": 0.1}
    if name == "orpo":
        from trl.experimental.orpo import (  # type: ignore[import-not-found]  # noqa: PLC0415
            ORPOConfig,
            ORPOTrainer,
        )

        return ORPOTrainer, ORPOConfig, {"beta": 0.1}
    from trl.experimental.cpo import (  # type: ignore[import-not-found]  # noqa: PLC0415
        CPOConfig,
        CPOTrainer,
    )

    simpo = {"loss_type": "simpo", "cpo_alpha": 0.0, "beta": 2.0, "simpo_gamma": 1.0}
    return CPOTrainer, CPOConfig, simpo


def beside_trl(name: str) -> dict[str, float]:
    """Loss and gradients of both, and how far they are apart."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made_pairs(folder, BATCH)
        tokenizer_in(folder / "tokenizer")
        first, policy = llama_in(folder / "first", 1), llama_in(folder / "policy", 2)
        loss, found = ours(name, folder, first, policy)
        expected_loss, expected = theirs(name, folder, first, policy)
        apart = sum((found[key] - expected[key]).square().sum().item() for key in expected)
        whole = sum(each.square().sum().item() for each in expected.values())
        assert set(found) == set(expected), "the same parameters"
        return {"loss": loss, "trl_loss": expected_loss, "gradient": (apart / whole) ** 0.5}


def main() -> int:
    """Compare, print, write."""
    options = _options()
    figures: dict[str, Any] = {}
    if options.trl is not None:
        sys.path.append(str(options.trl))
        figures = {name: beside_trl(name) for name in PREFERENCES}
        rows = [(name, *(f"{each:.9g}" for each in of.values())) for name, of in figures.items()]
        show(("objective", "our loss", "TRL's", "gradients, relative"), rows)
        write_json(options.json, figures)
        away = [abs(of["loss"] / of["trl_loss"] - 1) for of in figures.values()]
        return 0 if max(*away, *(of["gradient"] for of in figures.values())) < TRL_WANTED else 1
    for name in options.objectives:
        try:
            figures[name] = exactness(name, options)
        except RunFailed as error:
            print(f"{name}: error: {error}")
            return 1
    rows = [(name, of["relative_difference"], of["kills"]) for name, of in figures.items()]
    show(("objective", "relative difference", "kills"), rows)
    write_json(options.json, figures)
    return 0 if all(of["relative_difference"] <= WANTED for of in figures.values()) else 1


def _options() -> argparse.Namespace:
    parser = line_with_kills(__doc__)
    parser.add_argument("--trl", type=Path, help="site-packages with TRL: compare with it alone")
    parser.add_argument("--objectives", nargs="+", default=PREFERENCES, choices=PREFERENCES)
    parser.add_argument("--rank", type=int, default=0, help="of adapters on a tiny gpt_neox")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
