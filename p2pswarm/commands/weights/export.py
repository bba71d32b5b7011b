"""`p2pswarm export`: trained weights as a folder that other programs load.

Errors:  Unusable for weights that cannot be used, or a folder that is there.
"""

import argparse
import importlib
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.commands.arguments import Commands, add_package, file_path, say, whole

TEXT = (
    "Writes a folder out of the weights of a run: for a model of transformers what from_pretrained "
    "takes, for any other what p2pswarm.load takes; with its tokenizer."
)
SHARD_MIB = 4_096  # the hub shows and loads files of up to 5 GB best
SHARD_MIB_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """Write a folder."""

    weights: Path
    folder: Path
    shard_mib: int
    packages: tuple[str, ...] = ()
    """Whose code may be run: the model may be of one."""
    like: Path | None = None
    """The folder of the model that the run began with."""

    def run(self, begun_s: float) -> int:
        """Write it, and say how large it is."""
        del begun_s
        exporting = importlib.import_module("p2pswarm.commands.weights.export_folder")
        written = exporting.export(
            self.weights, self.folder, self.shard_mib, self.packages, self.like
        )
        say(f"{self.folder}: {written:,} bytes; its README.md shows how to load it")
        return 0


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "export", help="trained weights as a folder for other programs", description=TEXT
    )
    parser.set_defaults(read=_read)
    parser.add_argument(
        "weights", type=file_path, metavar="WEIGHTS", help="the .safetensors file that a run wrote"
    )
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
    add_package(parser)


def _read(flags: argparse.Namespace) -> ExportCommand:
    packages = tuple(flags.package)
    return ExportCommand(flags.weights, flags.folder, flags.shard_mib, packages, flags.like)
