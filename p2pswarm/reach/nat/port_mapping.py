"""PortMapping: keeps a port of the router forwarded to us, for as long as we live.

Source:  RFC 6887 section 11.2.1 for renewal; docs/reachability.md section 5.
"""

import itertools
from collections.abc import Callable

from p2pswarm.base.errors import BadMessage, Refused
from p2pswarm.base.ids import Address
from p2pswarm.reach.nat import nat_pmp, pcp, upnp
from p2pswarm.reach.nat.mapping_search import Lease, LeaseSearch, Output, Place

ANNOUNCED_PORT = 5350  # RFC 6887 section 19.1: where clients hear of a router's start
ANNOUNCED_GROUP = "224.0.0.1"
JITTER_S = 2.0  # RFC 6887 section 8.5: packets are late, and clocks are read in whole seconds
DRIFT = 16  # and a sixteenth is how much slower or faster a router's clock may be
BACK_S = 1.0


class RouterEpoch:
    """The clock in all packets of a router, which tells whether it has lost what it promised.

    The clock of a router's port mappings begins at 0 when they are lost, as at its start. It tells
    its time in each answer, and to all hosts by multicast when it has been started. A time that
    does not fit the one before, by our own clock, is another beginning.

    Source: RFC 6887 sections 8.5 and 14.1; RFC 6886 sections 3.2.1 and 3.6.
    """

    def __init__(self) -> None:
        self._heard: tuple[float, float] | None = None
        """The router's last time, and ours when it came."""

    def on_packet(self, packet: bytes, now_s: float) -> bool:
        """Take a packet of the router; whether it has begun anew since the one before."""
        epoch_s = epoch_in(packet)
        if epoch_s is None:
            return False
        before, self._heard = self._heard, (float(epoch_s), now_s)
        return before is not None and not _fits(before, self._heard)


def epoch_in(packet: bytes) -> int | None:
    """The router's time in a packet of PCP or NAT-PMP; None if there is none."""
    return pcp.epoch_in(packet) if packet[:1] == bytes((pcp.VERSION,)) else nat_pmp.epoch_in(packet)


def _fits(before: tuple[float, float], after: tuple[float, float]) -> bool:
    theirs_s, ours_s = after[0] - before[0], after[1] - before[1]
    if theirs_s < -BACK_S:
        return False
    slow = ours_s + JITTER_S < theirs_s - theirs_s / DRIFT
    fast = theirs_s + JITTER_S < ours_s - ours_s / DRIFT
    return not (slow or fast)


SEARCH_AGAIN_S = 600.0  # a router in which a person has just switched port forwarding on
RENEW_PAUSE_S = 4.0  # RFC 6887 section 11.2.1: no renewal sooner after another
QUESTION_S = 60.0  # between two looks at the router's clock: it may be started without a word


class PortMapping:
    """Keeps a port of the router forwarded to us, for as long as we live.

    It searches for a lease, renews it at half of its life and then at ever shorter intervals,
    begins again when it is lost, and returns it at the end.
    """

    def __init__(self, port: int, entropy: Callable[[int], bytes]) -> None:
        """`entropy`: returns that many random bytes, as `os.urandom` does."""
        self._port = port
        self._entropy = entropy
        self._place: Place | None = None
        self._search: LeaseSearch | None = None
        self.lease: Lease | None = None
        """The port that the router forwards now; only read it."""
        self._lease_until_s = 0.0
        self._due_s: float | None = None
        """Time to renew, or to search again."""
        self._numbers = itertools.count(1)
        self._number = 0
        """Number of the last call that renews a lease."""
        self._asked_s = float("-inf")
        """Time at which the router was last asked for a lease."""
        self._question_s: float | None = None
        """Time to look at the router's clock; None without a lease, or where it has none."""
        self._epoch = RouterEpoch()
        self._changes: list[Lease | None] = []
        self._outputs: list[Output] = []
        self.refusals: dict[str, str] = {}
        """Reason of each protocol that gave nothing in the last search."""

    @property
    def searching(self) -> bool:
        """True if a search is under way."""
        return self._search is not None

    # what it is told

    def on_gateway(self, gateway: str | None, own_host: str | None, now_s: float) -> None:
        """Our router and our address towards it; others than before change all."""
        known = self._place and (self._place.gateway, self._place.own_host)
        if gateway is None or own_host is None:
            self._place = self._search = None
            self._due_s = None
            self._keep(None, now_s)
        elif known != (gateway, own_host):
            if self.lease is not None:  # the old router may still hear it
                self._outputs.append(self.lease.release(next(self._numbers)))
            nonce = self._entropy(pcp.NONCE_BYTES)
            self._place = Place(gateway, own_host, self._port, nonce)
            self._epoch = RouterEpoch()
            self._keep(None, now_s)
            self._begin(now_s)

    def on_datagram(self, data: bytes, sender: Address, now_s: float) -> None:
        """A packet came by UDP."""
        by_router = self._place is not None and sender == Address(self._place.gateway, pcp.PORT)
        begun, before = by_router and self._epoch.on_packet(data, now_s), self.lease
        if self._search is not None:
            self._search.on_datagram(data, sender, now_s)
            self._look(now_s)
        elif before is not None and before.answered_by(sender):
            self._on_renewal(before, data, now_s)
        if begun and self._search is None and self.lease is before:
            self._hurry(now_s)  # what it promised is gone, and what it refused may be granted now

    def on_reply(self, number: int, status: int, data: bytes | None, now_s: float) -> None:
        """A call to the router has ended; `data` is None if nothing came."""
        if self._search is not None:
            self._search.on_reply(number, status, data, now_s)
            self._look(now_s)
        elif self.lease is not None and number == self._number and data is not None:
            try:
                upnp.read_reply(status, data)
            except BadMessage:
                return
            except upnp.SoapRefusal:
                self._on_loss(now_s)
            else:
                self._keep(self.lease, now_s)

    def on_doubt(self, now_s: float) -> None:
        """Peers no longer arrive at the leased port: renew it, as if its time had come."""
        if self.lease is not None:
            self._hurry(now_s)

    def on_deadline(self, now_s: float) -> None:
        """Renew, give up, or search again, as the time says."""
        if self.lease is not None and self._question_s is not None and now_s >= self._question_s:
            self._question_s = now_s + QUESTION_S
            self._outputs += filter(None, [self.lease.question()])
        if self._search is not None:
            self._search.on_deadline(now_s)
            self._look(now_s)
        elif self._due_s is not None and now_s >= self._due_s:
            if self.lease is None:
                self._begin(now_s)
            elif now_s >= self._lease_until_s:
                self._on_loss(now_s)
            else:
                self._renew(self.lease, now_s)

    def release(self) -> None:
        """Return what is leased, and do nothing more."""
        if self.lease is not None:
            self._outputs.append(self.lease.release(next(self._numbers)))
        self._place = self._search = self.lease = self._due_s = self._question_s = None

    # what it asks for

    def changes(self) -> list[Lease | None]:
        """Return each other port that the router has forwarded since the last call; None: none."""
        changes, self._changes = self._changes, []
        return changes

    def drain(self) -> list[Output]:
        """Return the packets to send and the calls to make."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def next_deadline_s(self) -> float | None:
        """Return when `on_deadline` is due."""
        if self._search is not None:
            return self._search.next_deadline_s()
        due_s = [each for each in (self._due_s, self._question_s) if each is not None]
        return min(due_s, default=None)

    # within

    def _hurry(self, now_s: float) -> None:
        """Ask the router now, or as soon after the last time as that may be."""
        soon_s = max(now_s, self._asked_s + RENEW_PAUSE_S)
        self._due_s = soon_s if self._due_s is None else min(self._due_s, soon_s)

    def _begin(self, now_s: float) -> None:
        assert self._place is not None
        self._asked_s = now_s
        self._search = LeaseSearch(self._place, self._entropy, self._numbers, now_s)
        self._look(now_s)

    def _look(self, now_s: float) -> None:
        """Take over what the search has, and its lease when it is over."""
        search = self._search
        assert search is not None
        self._outputs += search.drain()
        if search.over:
            self._search = None
            self.refusals = search.refusals
            self._due_s = now_s + SEARCH_AGAIN_S
            self._keep(search.lease, now_s)

    def _keep(self, lease: Lease | None, now_s: float) -> None:
        """Go on with a lease that was granted just now, or without one."""
        before = self.lease and self.lease.external
        self.lease = lease
        self._question_s = now_s + QUESTION_S if lease is not None and lease.question() else None
        if lease is not None:
            self._lease_until_s = now_s + lease.lifetime_s
            self._due_s = now_s + lease.lifetime_s / 2
        if before != (lease and lease.external):
            self._changes.append(lease)

    def _renew(self, lease: Lease, now_s: float) -> None:
        self._number = next(self._numbers)
        self._asked_s = now_s
        self._outputs.append(lease.renewal(self._number))
        left_s = self._lease_until_s - now_s
        self._due_s = min(now_s + max(left_s / 2, RENEW_PAUSE_S), self._lease_until_s)

    def _on_renewal(self, lease: Lease, data: bytes, now_s: float) -> None:
        if lease.moved(data):
            self._on_loss(now_s)
            return
        try:
            self._keep(lease.renewed(data), now_s)
        except BadMessage:
            return
        except Refused:
            self._on_loss(now_s)

    def _on_loss(self, now_s: float) -> None:
        self._keep(None, now_s)
        self._begin(now_s)
