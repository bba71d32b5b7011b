"""The results of a demo: figures for scripts, rows for people, a picture, and why it failed.

Units:   seconds since the first step; nats per byte; tokens per second.
"""

from pathlib import Path

from matplotlib.axes import Axes

from p2pswarm.commands.demo.options import Options
from p2pswarm.commands.picture import FAINT, INK, picture
from p2pswarm.progress.history import RunHistory


def summary(history: RunHistory, ready_s: float) -> dict[str, object]:
    """The figures that `--json` writes."""
    counts = history.counts
    return {
        "held_out": [[p.seconds, p.step, p.nats_per_token] for p in history.held_out],
        "tokens_per_s": history.ended.tokens_per_s if history.ended else 0.0,
        "steps": history.step,
        "microbatches": {
            "asked": counts.asked,
            "counted": counts.counted,
            "replayed": counts.replayed,
        },
        "kills": len(history.kills),
        "moves": len(history.moves),
        "seconds_to_ready": ready_s,
    }


def rows(history: RunHistory, ready_s: float) -> list[tuple[str, str]]:
    """The rows of the table: a name and a figure each."""
    counts = history.counts
    became = f"{counts.asked} asked, {counts.counted} counted in every stage"
    told = [
        ("steps", str(history.step)),
        ("microbatches", f"{became}, {counts.replayed} replayed"),
        ("servers killed", str(len(history.kills))),
    ]
    if history.moves:
        told.append(("servers moved", str(len(history.moves))))
    if history.held_out:
        first, last = history.held_out[0], history.held_out[-1]
        loss = f"{first.nats_per_token:.3f} -> {last.nats_per_token:.3f} nats/byte"
        told.append(("held-out loss", f"{loss} in {last.seconds:.0f} s"))
    rate = history.ended.tokens_per_s if history.ended else 0.0
    return [
        *told,
        ("throughput", f"{rate:,.0f} tokens/s"),
        ("ready after", f"{ready_s:.1f} s"),
    ]


def title(options: Options) -> str:
    """The title of the picture."""
    if options.uneven:
        return f"{options.stages} stages of unequal machines: who moves, and what it brings"
    text = "Python's library" if options.data is None else options.data.name
    return (
        f"{options.stages} stages of {options.replicas} servers, one machine: "
        f"a byte-level transformer learns {text}"
    )


def failure(history: RunHistory) -> str:
    """Return why the run failed; empty if it did not."""
    if history.ended is None:
        return "the run did not end"
    if history.ended.failed:
        return history.ended.reason
    missing = history.ended.counts.asked - history.ended.counts.counted
    return f"{missing} microbatches were not counted" if missing else ""


TRAIN, HELD_OUT, RATE, KILL = "#9db8d2", "#1f5f99", "#4c8c4a", "#c0392b"
LOSS_TOP = 2.5  # times the last held-out loss: a higher axis would flatten the curve
MOVED = "#7d3c98"
NAMED_ROWS = 8  # names of moves below each other
SMOOTHED_STEPS = 10  # a step's throughput is noisy where processes share a processor


def draw(history: RunHistory, place: Path, title: str, kind: str) -> None:
    """Write the picture into the file `place`, in the format `kind`."""
    with picture(place, kind) as figure:
        losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1.0])
        _losses(losses, history)
        _rates(rates, history)
        for axes in (losses, rates):
            _clean(axes)
            for kill in history.kills:
                _mark(axes, kill.seconds, KILL)
        for kill in history.kills[:1]:
            times = len(history.kills)
            text = "a server is killed" if times == 1 else f"servers are killed ({times} times)"
            _name(losses, kill.seconds, text, KILL)
        losses.set_title(title, loc="left", fontsize=11)


def draw_moves(history: RunHistory, place: Path, title: str, kind: str) -> None:
    """As `draw`, of a run in which nothing is learnt: how fast it is, and who moves."""
    with picture(place, kind) as figure:
        axes = figure.subplots()
        _rates(axes, history, 1)
        _clean(axes)
        for number, move in enumerate(history.moves):
            _mark(axes, move.seconds, MOVED)
            text = f"{move.server}: stage {move.source} to {move.target}"
            _name(axes, move.seconds, text, MOVED, number % NAMED_ROWS)
        axes.set_title(title, loc="left", fontsize=11)


def _losses(axes: Axes, history: RunHistory) -> None:
    times_s = [step.seconds for step in history.steps]
    axes.plot(
        times_s, [step.loss for step in history.steps], color=TRAIN, linewidth=1, label="train"
    )
    points = history.held_out
    axes.plot(
        [point.seconds for point in points],
        [point.nats_per_token for point in points],
        color=HELD_OUT,
        linewidth=1.8,
        marker="o",
        markersize=3,
        label="held out",
    )
    if points:
        last = points[-1]
        axes.set_ylim(top=min(axes.get_ylim()[1], last.nats_per_token * LOSS_TOP))
        axes.annotate(
            f"{last.nats_per_token:.2f}",
            (last.seconds, last.nats_per_token),
            xytext=(6, -3),
            textcoords="offset points",
            color=HELD_OUT,
        )
    axes.set_ylabel("loss, nats per byte")
    axes.legend(frameon=False, loc="upper right")


def _rates(axes: Axes, history: RunHistory, smoothed: int = SMOOTHED_STEPS) -> None:
    rates = [step.tokens_per_s for step in history.steps]
    smooth = [
        sum(window) / len(window)
        for i in range(len(rates))
        if (window := rates[max(0, i + 1 - smoothed) : i + 1])
    ]
    axes.plot([step.seconds for step in history.steps], smooth, color=RATE, linewidth=1.4)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("tokens/s")
    axes.set_xlabel("seconds since the first step")


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)


def _mark(axes: Axes, seconds: float, color: str) -> None:
    axes.axvline(seconds, color=color, linewidth=1, linestyle=(0, (4, 3)))


def _name(axes: Axes, seconds: float, text: str, color: str, row: int = 0) -> None:
    """Say beside a mark what it is; names in several rows do not hide each other."""
    axes.annotate(
        text,
        (seconds, 0.97 - 0.06 * row),
        xycoords=("data", "axes fraction"),
        xytext=(5, 0),
        textcoords="offset points",
        color=color,
        va="top",
    )
