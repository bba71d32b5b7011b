"""LinkFacts: what can be read off a link: who is at its other end, how it stands, what it carried.

Units:   bytes.
Errors:  none.
"""

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.bulk.channels import BulkChannels
from p2pswarm.net.guard.slots import LinkUse
from p2pswarm.net.link.control_records import ControlRecords
from p2pswarm.net.link.link import LinkMachine, LinkStats
from p2pswarm.net.link.mux import Mux
from p2pswarm.net.link.session import Session


class LinkFacts:
    """A link, as those see it who change nothing."""

    session: Session
    """The result of the handshake."""
    records: ControlRecords
    """What the link has sealed and opened; only read it."""
    _machine: LinkMachine
    _mux: Mux
    _channels: BulkChannels

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven."""
        return self.session.peer

    @property
    def remote(self) -> Address:
        """The address of the other end of the control connection."""
        return self.session.remote

    @property
    def over(self) -> bool:
        """Whether the link has ended."""
        return self._machine.error is not None

    @property
    def rtt_s(self) -> float:
        """The round trip of its pings; 0 before the first has come back."""
        return self._machine.life.rtt_s

    @property
    def doubted(self) -> bool:
        """Whether the path may be dead, and nothing has come since that was noticed."""
        return self._machine.life.doubts(self.records.expected)

    @property
    def contact(self) -> Contact:
        """The peer and where to dial it, as far as the peer has told us."""
        return self.session.contact

    @property
    def stats(self) -> LinkStats:
        """What the link has carried so far."""
        machine, bulk = self._machine, self._channels.carried
        sent = machine.records.unacked.sent_bytes
        return LinkStats(sent, machine.received_bytes, *bulk, machine.path.altered)

    @property
    def use(self) -> LinkUse:
        """Who uses the link now."""
        if self._mux.live_ours or self._channels.busy:
            return LinkUse.US
        return LinkUse.THEM if self._mux.live else LinkUse.NOBODY

    def takes(self, reply_bytes: int = 0) -> bool:
        """Whether the peer may get so much more to read; it may not if it leaves much unread."""
        return self._mux.replies.takes(self._mux.held_bytes, reply_bytes)
