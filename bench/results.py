"""What benches share: a command line with `--json`, a table, a file of figures, quantiles."""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

WIDTH = 120  # of a table, also where the output is a file


def command_line(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the first line of a docstring, and `--json`."""
    parser = argparse.ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser


def write_json(path: Path | None, figures: object) -> None:
    """Write figures to the file of `--json`, if there is one."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


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
