"""DialBacks: which peers to dial back at the host from which their own links come.

A peer's link shows that it is at a host, not that it can be dialled there: it may be behind a
gateway, or may name a port where something else listens. So it is dialled once, and is a client
until it was found. That harms no third party: whoever has opened a link from a host is there. It
could have its own host's ports tried, or ours filled with dials that nobody answers, so there are
bounds for each address, host and network, and for all together.

What was found is remembered for a while, so that a peer that has no place in a table is not dialled
at each of its requests.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most `TOGETHER` dials under way, `REMEMBERED` outcomes of each kind.
Errors:  none.
Source:  RFC 9000, 8.1: an address is validated before it is used for others; libp2p's AutoNAT,
         which dials back only the address from which the request came.
"""

from collections import Counter

from p2pswarm.base.ids import Contact
from p2pswarm.net.os.addresses import Scope, address_groups, scope_of

TOGETHER = 64  # dials under way: few sockets, and 3 s each if nobody answers
PER_NETWORK = 16  # of these in one public /24 (IPv6: /48): the rest is for others
REFUTED_S = 300.0  # who opens its port is a server five minutes later at most
REFUTED_PER_HOST = 16  # addresses of one host in that time: nodes of one machine, not all its ports
FOUND_S = 600.0  # as long as a bucket goes without being refreshed
REMEMBERED = 4096  # about 1 MB


class DialBacks:
    """The dials under way, and what came of those before."""

    def __init__(self) -> None:
        self._under_way: dict[Contact, str] = {}
        """Each with its network, empty if that has no bound."""
        self._per_network: Counter[str] = Counter()
        self._found_s: dict[Contact, float] = {}
        self._refuted_s: dict[Contact, float] = {}
        """When each was not found; the oldest first, as above."""
        self._refuted_per_host: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many outcomes are remembered."""
        return len(self._found_s) + len(self._refuted_s)

    def found(self, contact: Contact, now_s: float) -> bool:
        """Whether a peer was found at its address a short time ago."""
        found_s = self._found_s.get(contact)
        return found_s is not None and now_s - found_s < FOUND_S

    def begin(self, contact: Contact, now_s: float) -> bool:
        """Whether to dial a peer back now; if so, report the outcome with `ended`."""
        self._forget(now_s)
        host = contact.address.host
        network = _network_of(host)
        if contact in self._under_way or contact in self._refuted_s:
            return False
        if len(self._under_way) >= TOGETHER or self._refuted_per_host[host] >= REFUTED_PER_HOST:
            return False
        if network and self._per_network[network] >= PER_NETWORK:
            return False
        self._under_way[contact] = network
        self._per_network[network] += 1
        return True

    def ended(self, contact: Contact, now_s: float, *, confirmed: bool) -> bool:
        """Note whether a peer was found; returns whether it was dialled because of `begin`."""
        network = self._under_way.pop(contact, None)
        if network is not None:
            self._per_network[network] -= 1
            if not self._per_network[network]:
                del self._per_network[network]
        if confirmed:
            self._drop_refuted(contact)
            self._found_s.pop(contact, None)  # to the end of the dict: the newest
            self._found_s[contact] = now_s
            if len(self._found_s) > REMEMBERED:
                del self._found_s[next(iter(self._found_s))]
        elif network is not None:
            self._found_s.pop(contact, None)
            self._drop_refuted(contact)
            self._refuted_s[contact] = now_s
            self._refuted_per_host[contact.address.host] += 1
            if len(self._refuted_s) > REMEMBERED:
                self._drop_refuted(next(iter(self._refuted_s)))
        return network is not None

    def _forget(self, now_s: float) -> None:
        """Forget what is older than its time."""
        while self._refuted_s and next(iter(self._refuted_s.values())) <= now_s - REFUTED_S:
            self._drop_refuted(next(iter(self._refuted_s)))
        while self._found_s and next(iter(self._found_s.values())) <= now_s - FOUND_S:
            del self._found_s[next(iter(self._found_s))]

    def _drop_refuted(self, contact: Contact) -> None:
        if self._refuted_s.pop(contact, None) is None:
            return
        host = contact.address.host
        self._refuted_per_host[host] -= 1
        if not self._refuted_per_host[host]:
            del self._refuted_per_host[host]


def _network_of(host: str) -> str:
    """The /24 or /48 of a public host; empty for a private one, whose network has no bound."""
    return address_groups(host)[-2] if scope_of(host) is Scope.PUBLIC else ""
