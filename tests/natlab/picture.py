"""The matrix as a picture: a cell for each pair, coloured by how it was reached."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from p2pswarm.commands.picture import picture_format

from .matrix import PathKind, Row, cell, names

__all__ = ["draw", "picture_format"]

COLOURS = {
    PathKind.DIRECT: "#7fbf7b",
    PathKind.MAPPED: "#b5d99c",
    PathKind.PUNCHED: "#8ab6e0",
    PathKind.RELAYED: "#f2d27a",
    PathKind.NO: "#e6e6e6",
}
CELL_INCHES = (1.15, 0.55)


def draw(rows: Sequence[Row], path: Path, title: str, kind: str) -> None:
    """Draw who reaches whom, in the format `kind`; a cell's colour is the path mostly taken."""
    names_a, names_b = names(rows, "a"), names(rows, "b")
    colours = ListedColormap([COLOURS[each] for each in PathKind])
    kinds = list(PathKind)
    most = [[kinds.index(_usual(rows, a, b)) for b in names_b] for a in names_a]

    width, height = CELL_INCHES
    figure = Figure(
        figsize=(width * len(names_b) + 2, height * len(names_a) + 1.6), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(
        most,
        cmap=colours,
        vmin=-0.5,
        vmax=len(kinds) - 0.5,
        aspect="auto",
    )
    for y, a in enumerate(names_a):
        for x, b in enumerate(names_b):
            text = cell(rows, a, b).replace(", ", "\n")
            axes.text(x, y, text, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(names_b)), names_b, rotation=30, ha="right")
    axes.set_yticks(range(len(names_a)), names_a)
    axes.set_xticks([x - 0.5 for x in range(1, len(names_b))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(names_a))], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.set_xlabel("b, who is reached")
    axes.set_ylabel("a, who reaches")
    axes.set_title(title)
    figure.savefig(path, dpi=120, format=kind)


def _usual(rows: Sequence[Row], a: str, b: str) -> PathKind:
    """The path that most attempts took; of several, the better one."""
    taken = [row["path"] for row in rows if (row["a"], row["b"]) == (a, b)]
    return max(PathKind, key=lambda kind: (taken.count(kind), -list(PathKind).index(kind)))
