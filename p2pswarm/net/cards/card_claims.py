"""CardClaims: which addresses that peers claim are dialled, so that no third party is bothered.

Source:  docs/addresses.md; RFC 9000, 8.1 and 21.5.
"""

from dataclasses import dataclass
from itertools import islice

from p2pswarm.base.ids import Contact
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of

REFUTED_S = 3600.0  # a host is dialled once in this time on the word of strangers
PAUSE_S = 60.0  # when our own network may have failed
UNDER_WAY_S = 10.0  # a dial and its handshake: see `TransportConfig`
PER_PAUSE = 256  # hosts tried and not found in `PAUSE_S`: as many servers as two stages have
PER_WIDE_NET = 64  # of one /16 (IPv6: /32) in `REFUTED_S`: a cloud has many peers in one
FOUND_MAX = 4096  # about 1 MB
TRIED_MAX = 16_384  # more than `PER_PAUSE` allows in `REFUTED_S`; about 4 MB


@dataclass(slots=True)
class _Try:
    """A dial on a peer's own word, and nobody was found yet."""

    begun_s: float
    wide_net: str
    counts: bool = False
    """True if somebody was found meanwhile, so that our own network works."""


class CardClaims:
    """The outcomes of dials at addresses that peers have claimed.

    A card is its peer's own word. A hostile peer names hosts that are none of its, under as many
    ids as it likes, and lets its true address stall: whoever dials it would dial them, too. So an
    address where we have never found the peer is dialled once: if the peer was not found, that
    host is left alone for an hour, whoever names it. There are bounds for each wide network, and
    over time.

    A try counts for an hour only if somebody was found while it was under way, or soon after: if
    nobody is, our own network fails, and we may try again after a pause. Private networks have no
    bounds, as they have none in tables: nobody from outside is believed private addresses.

    A liar may so keep us for an hour from trusting the cards of a host's peers. They are still
    dialled where others, or we ourselves, have found them.
    """

    def __init__(self) -> None:
        self._found: dict[Contact, None] = {}
        """The oldest first."""
        self._tried: dict[str, _Try] = {}
        """By host, the oldest first."""
        self._per_net: GroupCounter[str] = GroupCounter()

    def __len__(self) -> int:
        """Return how many contacts and hosts are remembered."""
        return len(self._found) + len(self._tried)

    def confirmed(self, named: Contact) -> bool:
        """Return whether we have found the peer there before."""
        return named in self._found

    def may_dial(self, named: Contact, now_s: float) -> bool:
        """Return whether to dial a peer where it claims to be; if so, call `begin`."""
        if named in self._found or not _bounded(named):
            return True
        self._forget(now_s)
        host, wide_net = _host_and_net(named)
        tried = self._tried.get(host)
        if tried is not None and (tried.counts or now_s - tried.begun_s < PAUSE_S):
            return False
        return self._per_net[wide_net] < PER_WIDE_NET and not self._full(now_s)

    def begin(self, named: Contact, now_s: float) -> None:
        """Note that a peer is dialled where it claims to be."""
        if named in self._found or not _bounded(named):
            return
        host, wide_net = _host_and_net(named)
        self._drop(host)
        self._tried[host] = _Try(now_s, wide_net)
        self._per_net.add(wide_net)
        if len(self._tried) > TRIED_MAX:
            self._drop(next(iter(self._tried)))

    def confirm(self, at: Contact, now_s: float) -> None:
        """Note that we dialled a peer at an address and it was there."""
        self._found.pop(at, None)  # to the end of the dict: the newest
        self._found[at] = None
        if len(self._found) > FOUND_MAX:
            del self._found[next(iter(self._found))]
        self._drop(_host_and_net(at)[0])
        for tried in reversed(self._tried.values()):
            if now_s - tried.begun_s > UNDER_WAY_S:
                break
            tried.counts = True

    def _full(self, now_s: float) -> bool:
        """Return whether so many were tried of late that no more may be."""
        if len(self._tried) < PER_PAUSE:
            return False
        newest = islice(reversed(self._tried.values()), PER_PAUSE - 1, None)
        return now_s - next(newest).begun_s < PAUSE_S

    def _forget(self, now_s: float) -> None:
        while self._tried:
            host, tried = next(iter(self._tried.items()))
            if now_s - tried.begun_s < REFUTED_S:
                return
            self._drop(host)

    def _drop(self, host: str) -> None:
        tried = self._tried.pop(host, None)
        if tried is not None:
            self._per_net.remove(tried.wide_net)


def _bounded(named: Contact) -> bool:
    """Return whether dials of an address have bounds: strangers could be there."""
    return scope_of(named.address.host) is Scope.PUBLIC


def _host_and_net(named: Contact) -> tuple[str, str]:
    """The host at an address, for IPv6 the /56: one home; and the wide network that it is in."""
    groups = address_groups(named.address.host.lower().rstrip("."))
    return groups[-1], groups[-1] if groups[0] == NAMES else groups[1]
