"""A picture that a command draws, in the format that its file's suffix names.

Errors:  Unusable for a format that matplotlib does not write.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib as mpl
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from p2pswarm.base.errors import Unusable

INK, FAINT = "#222222", "#bbbbbb"
WIDTH_INCHES, HEIGHT_INCHES = 8.0, 5.4
NO_PICTURES = {"pgf", "raw", "rgba"}  # they need LaTeX, or no program shows them


def picture_format(path: Path) -> str:
    """The format that the suffix of `path` names; Unusable if there is no such format."""
    formats = sorted(set(FigureCanvasBase.get_supported_filetypes()) - NO_PICTURES)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        shown = f".{kind} is" if kind else "without a suffix there is"
        raise Unusable(f"{path}: {shown} no format for a picture: use .{', .'.join(formats)}")
    return kind


@contextmanager
def picture(place: Path, kind: str, height_inches: float = HEIGHT_INCHES) -> Iterator[Figure]:
    """A figure to draw into, which is written into the file `place` when the block ends."""
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        yield figure
        figure.savefig(place, dpi=150, format=kind)
