"""What a trainer's decisions about moves mean to people.

Units:   seconds since the first step.
"""

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Event, Note, Relocated, gain_text
from p2pswarm.trainer.balance.balance_reports import (
    BalanceReport,
    OrderedMove,
    OrderedPreparation,
)
from p2pswarm.trainer.balance.move_preparation import StopPreparing


def balance_events(report: BalanceReport, seconds: float) -> list[Event]:
    """A move as an event; that nobody moves is told to who asks (`p2pswarm explain`)."""
    match report:
        case OrderedMove():
            server = PeerId(report.incarnation.peer).short
            where = report.source, report.target
            return [Relocated(seconds, server, *where, report.gain, report.away_s, report.planned)]
        case OrderedPreparation():
            server = PeerId(report.incarnation.peer).short
            goes = f"to move from stage {report.source} to {report.target}"
            gain = gain_text(report.gain)
            text = f"{server} is {goes} ({gain}): it fetches the weights while it serves on"
            return [Note(seconds, text)]
        case StopPreparing(move, reason):
            server = PeerId(move.mover.peer).short
            return [Note(seconds, f"{server} stays in stage {move.source}: {reason}")]
    return []
