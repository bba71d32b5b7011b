"""`p2pswarm generate`: let trained weights write.

Errors:  Unusable for a file that holds none.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import SEED_MAX, Commands, add_package, file_path, whole

TEXT = "Goes on from a text, with the weights that a run wrote. The same seed gives the same text."
TOKENS_MAX = 1_000_000
TEMPERATURE_MAX = 100.0


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """Let weights write."""

    weights: Path
    prompt: str
    tokens: int
    temperature: float
    top: tuple[int, float]
    """The likeliest tokens among which one is drawn: how many, and their chance together."""
    seed: int
    packages: tuple[str, ...] = ()
    """Whose code may be run: the model may be of one."""

    def run(self, begun_s: float) -> int:
        """Print the prompt and what follows, as it is found."""
        del begun_s
        using = importlib.import_module("p2pswarm.commands.weights.use")
        model = using.load_model(self.weights, self.packages)
        pieces = model.generate_text(
            self.prompt,
            tokens=self.tokens,
            temperature=self.temperature,
            top_k=self.top[0],
            top_p=self.top[1],
            seed=self.seed,
        )
        shown = self.prompt
        for piece in using.shown(pieces):
            sys.stdout.write(shown + piece)
            sys.stdout.flush()
            shown = ""
        sys.stdout.write("\n")
        return 0


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser("generate", help="let trained weights write", description=TEXT)
    parser.set_defaults(read=_read)
    parser.add_argument(
        "weights", type=file_path, metavar="WEIGHTS", help="the .safetensors file that a run wrote"
    )
    parser.add_argument("prompt", nargs="?", default="", metavar="TEXT", help="what to go on from")
    parser.add_argument(
        "--tokens", type=whole(1, TOKENS_MAX), default=200, metavar="N", help="how many; 200"
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
        type=whole(0, TOKENS_MAX),
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


def _read(flags: argparse.Namespace) -> GenerateCommand:
    drawn = flags.temperature, (flags.top_k, flags.top_p), flags.seed
    return GenerateCommand(
        flags.weights, flags.prompt, flags.tokens, *drawn, packages=tuple(flags.package)
    )
