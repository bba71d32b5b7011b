"""Draws what `real_model.py` wrote: the loss of both runs, the kill, answers before and after.

python bench/real_model_picture.py real_model.json chat.png
"""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT = "#222222", "#bbbbbb"
SWARM, TRL, KILL, AFTER = "#1f5f99", "#e0a030", "#c0392b", "#2d7d46"
SIZE_INCHES = (8.0, 3.2)
LINE_CHARS = 46
ANSWER_CHARS = 88
LINE_HEIGHT = 0.07


def draw(record: dict[str, Any], path: Path) -> None:
    """Write the picture; its format is that of the suffix."""
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        losses, answers = figure.subplots(1, 2, width_ratios=[1.0, 1.1])
        _losses(losses, record)
        _answers(answers, record["answers"])
        figure.savefig(path, dpi=150)


def _losses(axes: Axes, record: dict[str, Any]) -> None:
    numbers = range(1, len(record["steps"]) + 1)
    axes.plot(numbers, record["losses_trl"], color=TRL, linewidth=4, label="TRL, one process")
    ours = [step["loss"] for step in record["steps"]]
    axes.plot(numbers, ours, color=SWARM, linewidth=1.2, label="the swarm, three stages")
    for number, step in enumerate(record["killed_in_step"]):
        label = "a server is killed" if number == 0 else None
        axes.axvline(step, color=KILL, linewidth=1, linestyle="--", label=label)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per target")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.legend(frameon=False, loc="upper right", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(which="both", color=FAINT, labelcolor=INK)


def _answers(axes: Axes, answers: list[dict[str, str]]) -> None:
    """Each question, with both answers below it."""
    axes.set_axis_off()
    axes.set_title("answers to orders that it has not seen", fontsize=9, loc="left")
    place = 0.95
    for each in answers:
        before = textwrap.shorten(each["before"], ANSWER_CHARS, placeholder=" ...")
        for text, colour, weight in (
            (each["question"], INK, "bold"),
            (f"before: {before}", KILL, "normal"),
            (f"after: {each['after']}", AFTER, "normal"),
        ):
            for line in textwrap.wrap(text, LINE_CHARS, subsequent_indent="   "):
                axes.text(0, place, line, color=colour, weight=weight, fontsize=9, va="top")
                place -= LINE_HEIGHT
        place -= LINE_HEIGHT


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
