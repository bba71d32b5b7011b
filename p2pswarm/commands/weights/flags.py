"""`p2pswarm check-model`, `generate`, `evaluate`, `export`: a model, and what was trained of it.

Errors:  Unusable for weights, text or a folder that cannot be used.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.weights_name import file_of
from p2pswarm.commands.arguments import (
    SEED_MAX,
    Commands,
    add_json,
    add_package,
    add_set,
    file_path,
    run_main,
    say,
    say_beside,
    whole,
    write,
)
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import load

CHECK_TEXT = (
    "Makes a small copy of the run's model and computes with it as a whole and in stages: forward, "
    "backward, a graph that is made again, and all of it twice. Says that both are identical, or "
    "which parameter differs first and what the reason may be. Nothing is started and nothing is "
    "fetched. A node does the same before it trains or serves a model that is not built in."
)
GENERATE_TEXT = (
    "Goes on from a text, with the weights that a run wrote; with --chat it answers. The same seed "
    "gives the same text."
)
EVALUATE_TEXT = (
    "Measures the loss, the perplexity and the bits a byte of a run's weights on the held-out text "
    "of its settings: each byte is predicted at most once."
)
EXPORT_TEXT = (
    "Writes a folder out of the weights of a run: for a model of transformers what from_pretrained "
    "takes, for any other what p2pswarm.load takes; with its tokenizer."
)
GENERATED_MAX = 1_000_000
TEMPERATURE_MAX = 100.0
PREDICTED = 1_000_000
PREDICTED_MAX = 10**12
SHARD_MIB = 4_096  # the hub shows and loads files of up to 5 GB best
EXPORT_DTYPES = ("bfloat16", "float32", "float64")
SHARD_MIB_MAX = 1 << 20


def add(commands: Commands) -> None:
    """Add all four commands."""
    check = commands.add_parser(
        "check-model", help="whether a model can be cut into stages", description=CHECK_TEXT
    )
    check.set_defaults(main=_check_model)
    check.add_argument("source", type=file_path, metavar="FILE.toml", help="a trainer's settings")
    check.add_argument(
        "--times",
        action="store_true",
        help="measure each block on this processor, one at a time, and say the best run.cut",
    )
    add_set(check)
    _add_generate(commands)
    _add_evaluate(commands)
    _add_export(commands)


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "weights",
        type=file_path,
        metavar="WEIGHTS",
        help="the .safetensors file that a run wrote, a folder with one, or train.weights of the "
        "settings",
    )


def _add_base(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--base",
        metavar="FOLDER|hf:NAME",
        help="of a run that trained an adapter: the model that it began with",
    )


def _weights(flags: argparse.Namespace) -> Path:
    """The file of weights; looked for before torch is loaded, which takes seconds."""
    file = file_of(flags.weights)
    if file != flags.weights and not flags.weights.is_dir():
        say_beside(f"weights: {file}")
    return file


def _check_model(flags: argparse.Namespace) -> int:
    """Check with torch, which only this command and nodes load."""
    config = load(flags.source, flags.changes)
    module = "commands.weights.model_checks"
    return run_main(module, flags.source, config.run, flags.begun_s, times=flags.times)


def _add_generate(commands: Commands) -> None:
    parser = commands.add_parser(
        "generate", help="let trained weights write", description=GENERATE_TEXT
    )
    parser.set_defaults(main=_generate)
    _add_weights(parser)
    parser.add_argument("prompt", nargs="?", default="", metavar="TEXT", help="what to go on from")
    parser.add_argument(
        "--tokens", type=whole(1, GENERATED_MAX), default=200, metavar="N", help="how many; 200"
    )
    parser.add_argument(
        "--temperature",
        type=_number(TEMPERATURE_MAX),
        default=0.8,
        metavar="T",
        help="0: always the likeliest; 1: as likely as in the text; default 0.8",
    )
    parser.add_argument(
        "--top-k",
        type=whole(0, GENERATED_MAX),
        default=0,
        metavar="K",
        help="draw among the K likeliest tokens; 0, the default: among all",
    )
    parser.add_argument(
        "--top-p",
        type=_number(1.0),
        default=1.0,
        metavar="P",
        help="draw among the likeliest tokens that have the chance P together; default 1",
    )
    parser.add_argument("--seed", type=whole(0, SEED_MAX), default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--chat",
        nargs="?",
        const="",
        metavar="TEXT",
        help="TEXT is a message, and is answered; without TEXT each line of the input is one",
    )
    _add_base(parser)
    add_package(parser)


def _number(most: float) -> Callable[[str], float]:
    """A number from 0 to `most`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0.0 <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {most:g}")
        return number

    return read


def _generate(flags: argparse.Namespace) -> int:
    """Print the prompt and what follows, as it is found."""
    weights = _weights(flags)
    using = importlib.import_module("p2pswarm.commands.weights.use")
    model = using.load_model(weights, tuple(flags.package), flags.base)
    if flags.chat is not None:
        message = flags.chat or flags.prompt
        how = using.Sampling(temperature=flags.temperature, top_k=flags.top_k, top_p=flags.top_p)
        lines = [message] if message else sys.stdin
        limits = {"tokens": flags.tokens, "seed": flags.seed}
        using.chat(model, weights, lines, write, how=how, **limits)
        return 0
    pieces = model.generate_text(
        flags.prompt,
        tokens=flags.tokens,
        temperature=flags.temperature,
        top_k=flags.top_k,
        top_p=flags.top_p,
        seed=flags.seed,
    )
    before = flags.prompt
    for piece in pieces:
        write(before + using.shown(piece))
        before = ""
    write("\n")
    return 0


def _add_evaluate(commands: Commands) -> None:
    parser = commands.add_parser(
        "evaluate", help="how well trained weights predict held-out text", description=EVALUATE_TEXT
    )
    parser.set_defaults(main=_evaluate)
    _add_weights(parser)
    parser.add_argument(
        "settings", type=file_path, metavar="RUN.TOML", help="the trainer's settings: its text"
    )
    parser.add_argument(
        "--tokens",
        type=whole(1, PREDICTED_MAX),
        default=PREDICTED,
        metavar="N",
        help=f"about so many, spread over the text; default {PREDICTED:,}",
    )
    _add_base(parser)
    add_set(parser)
    add_json(parser)


def _evaluate(flags: argparse.Namespace) -> int:
    config = _with_text(flags.settings, flags.changes)
    weights = _weights(flags)
    using = importlib.import_module("p2pswarm.commands.weights.use")
    found = using.evaluate(weights, flags.settings, config, flags.tokens, say_beside, flags.base)
    say(using.as_json(found) if flags.json else using.as_text(found))
    return 0


def _add_export(commands: Commands) -> None:
    parser = commands.add_parser(
        "export", help="trained weights as a folder for other programs", description=EXPORT_TEXT
    )
    parser.set_defaults(main=_export)
    _add_weights(parser)
    parser.add_argument("folder", type=file_path, metavar="FOLDER", help="the folder to make")
    parser.add_argument(
        "--shard-mib",
        type=whole(1, SHARD_MIB_MAX),
        default=SHARD_MIB,
        metavar="MIB",
        help=f"no file of a model of transformers is larger; default {SHARD_MIB:,}",
    )
    parser.add_argument(
        "--like",
        type=file_path,
        metavar="FOLDER",
        help="of the model that the run began with: its chat template and the like go along",
    )
    _add_base(parser)
    parser.add_argument(
        "--merge", action="store_true", help="an adapter is merged into the weights of its base"
    )
    parser.add_argument(
        "--into-original",
        action="store_true",
        help="with --merge: into the base's own weights, also where the run trained beside "
        "quantised ones; default: into what it trained beside",
    )
    parser.add_argument(
        "--measure",
        type=file_path,
        metavar="RUN.TOML",
        help="with --merge: the trainer's settings; say the loss on their held-out text, of both "
        "bases where the run quantised one",
    )
    parser.add_argument("--dtype", choices=EXPORT_DTYPES, default="", help="of the weights")
    add_package(parser)


def _export(flags: argparse.Namespace) -> int:
    """Write the folder, and say how large it is."""
    weights = _weights(flags)
    if flags.folder.exists():
        raise Unusable(f"{flags.folder} is there already, and is kept: name another folder")
    for named, flag in ((flags.into_original, "--into-original"), (flags.measure, "--measure")):
        if named and not flags.merge:
            raise Unusable(f"{flag} is for --merge: add that, or leave it out")
    measure = None if flags.measure is None else _measure(flags.measure)
    exporting = importlib.import_module("p2pswarm.commands.weights.export_folder")
    written = exporting.export(
        *(weights, flags.folder, flags.shard_mib, tuple(flags.package), flags.like, flags.base),
        merges=flags.merge,
        dtype=flags.dtype,
        original=flags.into_original,
        measure=measure,
    )
    say(f"{flags.folder}: {written:,} bytes; its README.md shows how to load it")
    return 0


def _with_text(settings: Path, changes: Sequence[str] = ()) -> NodeConfig:
    """A trainer's settings; Unusable without a text."""
    config = load(settings, changes)
    if not config.train.parts:
        raise Unusable(f"{settings}: train.data is missing: name the text that is held out from")
    return config


def _measure(settings: Path) -> Callable[[Any], float]:
    """What tells a model's loss on the held-out text of a trainer's settings."""
    config = _with_text(settings)
    using = importlib.import_module("p2pswarm.commands.weights.use")

    def loss_of(model: Any) -> float:
        found = using.evaluated(model, settings, config, PREDICTED, say_beside)
        return float(found.whole.loss)

    return loss_of
