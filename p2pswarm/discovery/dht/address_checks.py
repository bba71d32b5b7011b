"""AddressChecks: which claimed addresses to dial, so that peers are found where they say.

A link proves who a peer is, not where it can be dialled. A peer whose link we dialled at the
claimed address, or whose link comes from there, needs no check. For any other claim we dial the
address once and ask who is there. Whoever claims a stranger's address so makes us dial the
stranger. So a host where the peer was not found is left alone for `REFUTED_S`, whoever names it,
and there are bounds on checks at a time, over time, and for each wide network.

A claim that is not checked now is forgotten: its peer repeats it with every request.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most `REFUTED_S / EVERY_S + BURST` hosts are remembered, because no more are dialled.
Errors:  none.
Source:  RFC 9000, 8.1 and 21.5: who may be made to send where before an address is validated.
"""

from collections import Counter, deque

from p2pswarm.base.ids import Address
from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.discovery.dht.routing_table import networks
from p2pswarm.net.os.addresses import address_groups

REFUTED_S = 3600.0  # a host is dialled once in this time on the word of strangers
TOGETHER = 16  # checks under way: few sockets, and 3 s each if nobody is there
EVERY_S = 1.0  # one check in this time on average: a scan of a /16 would take 18 hours
BURST = 64  # a small swarm that announces names joins at once
PER_WIDE_NET = 16  # checks of one public /16 (IPv6: /32) in `REFUTED_S`; the table takes 10


class AddressChecks:
    """The checks under way, and the hosts where no peer was found."""

    def __init__(self) -> None:
        self._under_way: set[str] = set()
        self._refuted_s: dict[str, float] = {}
        """The hosts where a peer was not found, and when; the oldest first."""
        self._begun: deque[tuple[float, str]] = deque()
        """When checks in public networks began, and the wide network of each."""
        self._per_net: Counter[str] = Counter()
        self._allowance = TokenBucket(EVERY_S, BURST)

    def __len__(self) -> int:
        """How many hosts are remembered."""
        return len(self._refuted_s)

    def begin(self, claimed: Address, now_s: float) -> bool:
        """Whether to dial a claimed address now; if so, report the outcome with `ended`."""
        self._forget(now_s)
        host = _key_of(claimed)
        wide_net = networks(claimed.host)[1]
        if host in self._under_way or host in self._refuted_s:
            return False
        if len(self._under_way) >= TOGETHER or self._per_net[wide_net] >= PER_WIDE_NET:
            return False
        if not self._allowance.take(now_s):
            return False
        self._under_way.add(host)
        if wide_net:
            self._begun.append((now_s, wide_net))
            self._per_net[wide_net] += 1
        return True

    def ended(self, claimed: Address, now_s: float, *, confirmed: bool) -> None:
        """Note whether the peer was found at the address that it claimed."""
        host = _key_of(claimed)
        self._under_way.discard(host)
        if not confirmed:
            self._refuted_s[host] = now_s

    def _forget(self, now_s: float) -> None:
        """Forget what is older than `REFUTED_S`."""
        begin_s = now_s - REFUTED_S
        while self._refuted_s and next(iter(self._refuted_s.values())) <= begin_s:
            del self._refuted_s[next(iter(self._refuted_s))]
        while self._begun and self._begun[0][0] <= begin_s:
            wide_net = self._begun.popleft()[1]
            self._per_net[wide_net] -= 1
            if not self._per_net[wide_net]:
                del self._per_net[wide_net]


def _key_of(address: Address) -> str:
    """The host at an address, or the /56 for IPv6: one home or machine, however it is written."""
    return address_groups(address.host.lower().rstrip("."))[-1]
