"""A trainer's reports of checkpoints as events."""

from p2pswarm.progress.events import Checkpointed, Event, Note
from p2pswarm.trainer.reports.checkpoint_reports import (
    CheckpointFailed,
    CheckpointReport,
    CheckpointSaved,
)

MB = 1_000_000


def checkpoint_event(report: CheckpointReport, seconds: float) -> Event:
    """What a report means to people."""
    match report:
        case CheckpointSaved(version, place, took_s):
            return Checkpointed(seconds, version, place, took_s)
        case CheckpointFailed(version, reason):
            return Note(seconds, f"no checkpoint of step {version}: {reason}")
        case _:
            parts = [f"{report.stages_saved} of {report.stages} stages saved"]
            if report.size:
                parts.append(f"{report.written / report.size:.0%} of {report.size / MB:,.1f} MB")
            return Note(seconds, f"checkpoint of step {report.version}: {', '.join(parts)}")
