"""The results of a demo: figures for scripts, rows for people, and why it failed.

Units:   seconds; nats per byte; tokens per second.
Errors:  none.
"""

from p2pswarm.commands.demo.options import Options
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
    """Why the run failed; empty if it did not."""
    if history.ended is None:
        return "the run did not end"
    if history.ended.failed:
        return history.ended.reason
    missing = history.ended.counts.asked - history.ended.counts.counted
    return f"{missing} microbatches were not counted" if missing else ""
