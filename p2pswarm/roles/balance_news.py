"""What a trainer's decisions about moves mean to people.

Units:   seconds since the first step.
Errors:  none.
"""

from p2pswarm.ids import PeerId
from p2pswarm.progress.events import Event, Relocated
from p2pswarm.trainer.balance import BalanceReport, OrderedMove


def balance_events(report: BalanceReport, seconds: float) -> list[Event]:
    """A move as an event; that nobody moves is told to who asks (`p2pswarm explain`)."""
    if not isinstance(report, OrderedMove):
        return []
    server = PeerId(report.incarnation.peer).short
    where = report.source, report.target
    return [Relocated(seconds, server, *where, report.gain, report.away_s, report.planned)]
