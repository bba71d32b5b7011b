"""The DHT's knobs: each has a default, a unit and the reason for its size.

Units:   in the names.
Source:  Maymounkov and Mazieres, "Kademlia" (2002); go-libp2p-kad-dht for k, the resiliency
         and the caps on IP groups; RFC 6298 for deadlines.
"""

from dataclasses import dataclass

MIB = 1 << 20
CONTACTS_MAX = 20  # in one message


@dataclass(frozen=True, kw_only=True, slots=True)
class DhtConfig:
    """How one node takes part in the DHT."""

    server: bool = True
    """Whether others may keep us in their tables and store with us."""

    k: int = 20
    """Contacts in a bucket, and in an answer."""
    waiting: int = 10
    """Newcomers a full bucket remembers."""
    strikes: int = 2
    """Failures in a row before a contact is dropped."""
    per_near_net: int = 2
    """Contacts of one /24 (IPv6: /48) in a bucket; public addresses only."""
    per_wide_net: int = 10
    """Contacts of one /16 (IPv6: /32) in the whole table; public addresses only."""
    refresh_s: float = 600.0
    """A bucket without a lookup for this long is looked up."""

    alpha: int = 6
    """Prompt requests under way in a lookup."""
    alpha_lossy: int = 10
    """The same when more than `lossy_share` of the recent requests failed."""
    lossy_share: float = 0.25
    calm_share: float = 0.05
    """With fewer failures than this, nobody is asked just to be on the safe side."""
    beta: int = 3
    """The closest who must have answered before a lookup of contacts is over."""
    lookup_s: float = 5.0
    """No get and no lookup takes longer."""
    deadline_least_s: float = 0.25
    deadline_most_s: float = 1.0
    deadline_dial_s: float = 1.5
    """For a peer that never answered us: a link may have to be made first."""

    carried: int = 3
    """Of the first requests of a get, so many may be carried on by those who are asked."""
    carry_width: int = 3
    """Whom we ask on behalf of another: so many of the closest we know."""
    carry_s: float = 0.5
    """No longer than this; then the runner hears whom we know, and goes on itself."""
    carrying: int = 64
    """Requests of others that we carry on at a time; the rest get a plain answer."""

    replicas: int = 8
    """Peers that hold a record."""
    replicas_success: int = 5
    """Of these, so many must have it before `put` returns."""
    negative_s: float = 5.0
    """How long a value that was not found is not looked for again."""
    misses: int = 4096
    """Keys remembered as not found; the oldest goes first."""
    batches: int = 1024
    """Peers for which records wait to be stored at once: 48 MiB if all batches are full."""
    ttl_most_s: float = 3600.0
    skew_s: float = 5.0
    """Clocks may differ by this much."""
    records_per_publisher: int = 1024
    bytes_per_publisher: int = MIB
    """64 publishers at their limit fill the store."""
    store_bytes: int = 64 * MIB

    seeds_all_s: float = 60.0
    """After the start, so long all seeds are greeted again and again (hivemind #624)."""
    seeds_all_every_s: float = 5.0
    seeds_one_every_s: float = 300.0
    """Later, one seed at random this often: two halves of a swarm find each other again."""
    jitter: float = 0.2
    """Every repeated act is this share earlier or later, so that nodes do not act in step."""

    def __post_init__(self) -> None:
        if not 1 <= self.beta <= self.k <= CONTACTS_MAX:
            raise ValueError(f"beta={self.beta} <= k={self.k} <= {CONTACTS_MAX} does not hold")
        if not 1 <= self.replicas_success <= self.replicas <= self.k:
            replicas = f"replicas_success={self.replicas_success} <= replicas={self.replicas}"
            raise ValueError(f"{replicas} <= k={self.k} does not hold")
