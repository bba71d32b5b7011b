"""What benches share: a command line with `--json`, a table, a file of figures, quantiles."""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import check_target, write_answer

WIDTH = 120  # of a table, also where the output is a file


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the first line of a docstring, and `--json`."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--json", type=target, metavar="FILE", help="write the figures there")
    return parser


def write_json(path: Path | None, figures: object) -> None:
    """Write figures to the file of `--json`, if there is one."""
    if path is not None:
        write_answer(path, json.dumps(figures, indent=1) + "\n")


def target(text: str) -> Path:
    """A file that can be written; argparse says why it cannot before the bench runs."""
    try:
        check_target(Path(text))
    except Unusable as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(text)


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table without a frame."""
    from rich.console import Console  # noqa: PLC0415 - most benches print no table
    from rich.table import Table  # noqa: PLC0415

    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=WIDTH).print(table)


def quantile(values: Iterable[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))]
