"""`p2pswarm evaluate`: how well trained weights predict text that they were not trained on.

Errors:  Unusable for weights or text that cannot be used.
"""

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import Commands, add_json, file_path, say, say_beside, whole

TEXT = (
    "Measures the loss, the perplexity and the bits a byte of a run's weights on the held-out text "
    "of its settings: each byte is predicted at most once."
)
TOKENS = 1_000_000
TOKENS_MAX = 10**12


@dataclass(frozen=True, slots=True)
class EvaluateCommand:
    """Measure weights."""

    weights: Path
    settings: Path
    tokens: int
    """About the most tokens to predict."""
    json: bool
    """Print one JSON object instead of a line."""

    def run(self, begun_s: float) -> int:
        """Measure, and print."""
        del begun_s
        using = importlib.import_module("p2pswarm.commands.weights.use")
        found = using.evaluate(self.weights, self.settings, self.tokens, say_beside)
        say(using.as_json(found) if self.json else using.as_text(found))
        return 0


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "evaluate", help="how well trained weights predict held-out text", description=TEXT
    )
    parser.set_defaults(read=_read)
    parser.add_argument(
        "weights", type=file_path, metavar="WEIGHTS", help="the .safetensors file that a run wrote"
    )
    parser.add_argument(
        "settings",
        type=file_path,
        metavar="RUN.TOML",
        help="the trainer's settings: its text",
    )
    parser.add_argument(
        "--tokens",
        type=whole(1, TOKENS_MAX),
        default=TOKENS,
        metavar="N",
        help=f"about so many, spread over the text; default {TOKENS:,}",
    )
    add_json(parser)


def _read(flags: argparse.Namespace) -> EvaluateCommand:
    return EvaluateCommand(flags.weights, flags.settings, flags.tokens, flags.json)
