"""The picture of a plan: what each stage's devices can do together, and what the plan asks of them.

Units:   microbatches per second.
Errors:  none.
"""

from pathlib import Path
from typing import Protocol

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from p2pswarm.plan.fleet import DeviceFleet, WorkLoad
from p2pswarm.plan.pipeline_annealing import Draft, device_rate
from p2pswarm.plan.pipeline_cost import needs_of
from p2pswarm.plan.pipeline_search import PipelinedPlan

INK, PACE = "#222222", "#c0392b"
KINDS = ("#1f5f99", "#4c8c4a", "#d08c2f", "#7b5ea7", "#9db8d2", "#a3623a", "#5a9e9a", "#888888")
SIZE_INCHES = (8.0, 4.2)


class Planned(Protocol):
    """A plan, and what it is of."""

    @property
    def fleet(self) -> DeviceFleet: ...  # noqa: D102
    @property
    def load(self) -> WorkLoad: ...  # noqa: D102
    @property
    def plan(self) -> PipelinedPlan: ...  # noqa: D102


def draw_plan(found: Planned, place: Path) -> None:
    """Write a PNG into the file `place`."""
    plan, fleet = found.plan, found.fleet
    needs = needs_of(fleet, found.load)
    stage_n = np.full(len(fleet.names), -1, dtype=np.int64)
    for stage, devices in enumerate(plan.stages):
        stage_n[list(devices)] = stage
    draft = Draft(stage_n, np.array(plan.borders, dtype=np.int64))
    kinds = sorted(set(fleet.kinds))
    with mpl.rc_context({"font.size": 10, "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        named = set[str]()
        for stage, devices in enumerate(plan.stages):
            bottom = 0.0
            for device in sorted(devices, key=lambda each: kinds.index(fleet.kinds[each])):
                kind = fleet.kinds[device]
                height = device_rate(needs, draft, device, stage)
                color = KINDS[kinds.index(kind) % len(KINDS)]
                label = None if kind in named else kind
                axes.bar(stage, height, 0.7, bottom, color=color, edgecolor="white", label=label)
                named.add(kind)
                bottom += height
        axes.axhline(1 / plan.cost.pace_s, color=PACE, linewidth=1.2, linestyle=(0, (4, 3)))
        blocks = [
            f"{stage}\nblocks {plan.borders[stage]}-{plan.borders[stage + 1] - 1}"
            for stage in range(len(plan.stages))
        ]
        axes.set_xticks(range(len(blocks)), blocks, fontsize=8)
        axes.set_xlabel("stage")
        axes.set_ylabel("microbatches a second")
        axes.set_title(
            f"{plan.seconds:.2f} s a step, at least {plan.lower_bound_s:.2f}; limit: "
            f"{plan.cost.limit}",
            loc="left",
            fontsize=10,
        )
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(place, dpi=150, format="png")
