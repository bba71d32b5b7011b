"""Draws what `survival.py` wrote: the loss beside a plain loop's, who died, and who was there.

python bench/survival_picture.py survival.json survival.png
"""

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, FAINT = "#222222", "#bbbbbb"
SWARM, PLAIN, KILL, STOP, TRAINER = "#1f5f99", "#e0a030", "#c0392b", "#8e7cc3", "#2d7d46"
STAGES = ("#1f5f99", "#4c8c4a", "#b0713a", "#7d4f9e")
MARKS = {
    "kill": (KILL, "x", "a server is killed"),
    "stop": (STOP, "|", "a server is stopped"),
    "trainer killed": (KILL, "D", "the coordinating trainer is killed"),
    "trainer stopped": (STOP, "D", "... is stopped"),
    "takeover": (TRAINER, "^", "the other trainer takes over"),
}
SIZE_INCHES = (8.0, 6.0)


def draw(record: dict, path: Path) -> None:
    """Write the picture; its format is that of the suffix."""
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        losses, faults, members = figure.subplots(3, 1, sharex=True, height_ratios=[2.4, 1.0, 1.2])
        begun_s = record["steps"][0]["at_s"]
        _losses(losses, record, begun_s)
        _faults(faults, record, begun_s)
        _members(members, record, begun_s)
        for axes in (losses, faults, members):
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(FAINT)
            axes.tick_params(color=FAINT, labelcolor=INK)
        members.set_xlabel("seconds since the first step")
        figure.savefig(path, dpi=150)


def _losses(axes: Axes, record: dict, begun_s: float) -> None:
    """The swarm's loss over time, and the plain loop's of the same step at the same place."""
    steps = record["steps"]
    times_s = [step["at_s"] - begun_s for step in steps]
    theirs = [record["plain_losses"][step["step"] - 1] for step in steps]
    axes.plot(times_s, theirs, color=PLAIN, linewidth=4, label="a plain loop, one process")
    ours = [step["loss"] for step in steps]
    axes.plot(times_s, ours, color=SWARM, linewidth=1.2, label="the swarm")
    axes.set_ylabel("loss, nats per byte")
    axes.legend(frameon=False, loc="upper right")


def _faults(axes: Axes, record: dict, begun_s: float) -> None:
    rows = list(MARKS)
    for place, kind in enumerate(reversed(rows)):
        color, marker, _ = MARKS[kind]
        when = [h["at_s"] - begun_s for h in record["happenings"] if h["what"] == kind]
        axes.plot(when, [place] * len(when), marker, color=color, markersize=5)
    axes.set_yticks(range(len(rows)), [MARKS[kind][2] for kind in reversed(rows)], fontsize=8)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="x", color="#eeeeee")


def _members(axes: Axes, record: dict, begun_s: float) -> None:
    times_s = [step["at_s"] - begun_s for step in record["steps"]]
    for stage in range(len(record["steps"][0]["members"])):
        there = [step["members"][stage] for step in record["steps"]]
        color = STAGES[stage % len(STAGES)]
        axes.step(times_s, there, where="post", color=color, linewidth=1, label=f"stage {stage}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ready servers")
    axes.legend(frameon=False, loc="lower right", ncols=4, fontsize=8)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["record"], Path(sys.argv[2]))
