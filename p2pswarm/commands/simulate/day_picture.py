"""The picture of a simulated day: throughput beside the optimum, and the members of each stage.

Errors:  Unusable for a format that matplotlib does not write.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from p2pswarm.base.errors import Unusable
from p2pswarm.sim.day_record import DayRecord
from p2pswarm.sim.traces import HOUR_S

INK, FAINT = "#222222", "#bbbbbb"
DONE, BEST, LOST = "#1f5f99", "#c9a227", "#c0392b"
STAGE_COLOURS = "viridis"
SIZE_INCHES = (8.0, 5.4)
STAGES_NAMED = 8  # more names would hide the curves


def day_format(path: Path) -> str:
    """The format that the suffix of a path names; Unusable if there is none such."""
    formats = sorted(set(FigureCanvasBase.get_supported_filetypes()) - {"pgf", "raw", "rgba"})
    kind = path.suffix.lower().removeprefix(".")
    if kind not in formats:
        shown = f".{kind} is" if kind else "without a suffix there is"
        raise Unusable(f"{path}: {shown} no format for a picture: use .{', .'.join(formats)}")
    return kind


def draw_day(
    record: DayRecord,
    series: Sequence[tuple[float, float, float]],
    title: str,
    place: Path,
    kind: str,
) -> None:
    """Write the picture into the file `place`; `series`: hours, microbatches/s, the optimum."""
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        rates, members = figure.subplots(2, 1, sharex=True, height_ratios=[2.0, 1.0])
        hours = [hour for hour, _, _ in series]
        rates.step(hours, [best for _, _, best in series], color=BEST, label="at best")
        rates.step(hours, [done for _, done, _ in series], color=DONE, label="done")
        rates.set_ylim(bottom=0.0)
        rates.set_ylabel("microbatches/s")
        rates.legend(frameon=False, loc="lower left")
        rates.set_title(f"{title}: {record.share():.3f} of the optimum", loc="left", fontsize=11)
        at_h = [step.at_s / HOUR_S for step in record.steps]
        colours = mpl.colormaps[STAGE_COLOURS]
        for stage in range(record.stages):
            members.step(
                at_h,
                [step.members[stage] for step in record.steps],
                color=colours(stage / max(1, record.stages - 1)),
                linewidth=1,
                where="post",
                label=f"stage {stage}",
            )
        members.set_ylim(bottom=0.0)
        members.set_ylabel("members")
        members.set_xlabel("hours")
        if record.stages <= STAGES_NAMED:
            members.legend(frameon=False, ncols=record.stages, loc="lower left", fontsize=8)
        for axes in (rates, members):
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(color=FAINT)
            for lost_s in record.runs_lost_s:
                axes.axvline(lost_s / HOUR_S, color=LOST, linewidth=1, linestyle=(0, (4, 3)))
        figure.savefig(place, dpi=150, format=kind)
