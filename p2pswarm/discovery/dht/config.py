"""The DHT's settings, each with a default and its reason.

Source:  Maymounkov and Mazieres, "Kademlia" (2002); go-libp2p-kad-dht for k, the resiliency
         and the caps on IP groups; RFC 6298 for deadlines.
"""

from dataclasses import dataclass

from p2pswarm.net.os.addresses import Scope

MIB = 1 << 20
CONTACTS_MAX = 20  # in one message


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtConfig:
    """The settings of one node."""

    server: bool = True
    """True if others may keep us in their tables and store with us."""
    least_scope: Scope = Scope.PRIVATE
    """Addresses of a smaller scope are not believed; PUBLIC for a node of a public network."""

    k: int = 20
    """The most contacts in a bucket, and in an answer."""
    waiting: int = 10
    """The most newcomers that a full bucket remembers."""
    strikes: int = 2
    """A contact is dropped after this many failures in a row."""
    per_near_net: int = 2
    """The most contacts of one public /24 (IPv6: /48) in a bucket."""
    per_wide_net: int = 10
    """The most contacts of one public /16 (IPv6: /32) in the whole table."""
    refresh_s: float = 600.0
    """A bucket that had no lookup for this long is refreshed."""

    alpha: int = 6
    """The most requests of a lookup that are under way and not late."""
    alpha_lossy: int = 10
    """The same, when more than `lossy_share` of the recent requests failed."""
    lossy_share: float = 0.25
    calm_share: float = 0.05
    """With at most this share of failures, a put first asks only as many peers as it needs."""
    beta: int = 3
    """A lookup of contacts is over when this many of the closest have answered."""
    lookup_s: float = 5.0
    """The longest time of a get, a put or a lookup."""
    deadline_least_s: float = 0.25
    """The shortest deadline: a busy processor may delay an answer this long."""
    deadline_most_s: float = 1.0
    """The longest deadline of a peer that has answered us: three of the longest round trips."""
    deadline_dial_s: float = 1.5
    """The deadline of a peer that never answered us: a link may have to be made first."""

    carried: int = 3
    """The number of a get's first requests that the peers that receive them may carry on."""
    carry_width: int = 3
    """The number of closest contacts that we ask on behalf of another peer."""
    carry_s: float = 0.5
    """The longest time to do so; then the peer gets our contacts and goes on itself."""
    carrying: int = 64
    """The most requests that we carry on at a time; the rest get our contacts."""

    replicas: int = 8
    """The number of peers that are to hold a record."""
    replicas_success: int = 5
    """The number of these that must hold it before `put` returns."""
    negative_s: float = 5.0
    """The time for which a value that was not found is not looked for again."""
    misses: int = 4096
    """The most keys that are remembered as not found; the oldest is forgotten first."""
    batches: int = 1024
    """The most batches of records that wait to be sent: 48 MiB if all are full."""
    ttl_most_s: float = 3600.0
    """The longest time to live of a record; its publisher renews it."""
    skew_s: float = 5.0
    """The most that the clocks of two peers may differ."""
    records_per_publisher: int = 1024
    bytes_per_publisher: int = 2 * MIB
    """The quota of one publisher here: 1,024 records with values of 700 bytes."""
    store_bytes: int = 64 * MIB
    """The memory of all records; who uses most of it makes room."""

    seeds_all_s: float = 60.0
    """The time after the start in which every seed is greeted again and again."""
    seeds_all_every_s: float = 5.0
    seeds_one_every_s: float = 300.0
    """The time between greetings of one random seed later, so that halves of a swarm meet."""
    seeds_silent_every_s: float = 5.0
    """The time between greetings of a seed that does not answer: newcomers join through it."""
    seeds_silent_s: float = 900.0
    """It is greeted so often for this long: a machine starts again in less."""
    seeds_late_every_s: float = 20.0
    """And so often later."""
    jitter: float = 0.2
    """Repeated work is earlier or later by up to this share, so that nodes differ."""

    def __post_init__(self) -> None:
        if not 1 <= self.beta <= self.k <= CONTACTS_MAX:
            raise ValueError(f"beta={self.beta} <= k={self.k} <= {CONTACTS_MAX} does not hold")
        if not 1 <= self.replicas_success <= self.replicas <= self.k:
            replicas = f"replicas_success={self.replicas_success} <= replicas={self.replicas}"
            raise ValueError(f"{replicas} <= k={self.k} does not hold")
