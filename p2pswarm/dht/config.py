"""The DHT's settings: each has a default, a unit and the reason for its size.

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
    """Newcomers that a full bucket remembers."""
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
    """With a smaller share of failures no more peers are asked than success needs."""
    beta: int = 3
    """How many of the closest must have answered before a lookup of contacts is over."""
    lookup_s: float = 5.0
    """The longest time that a get or a lookup takes."""
    deadline_least_s: float = 0.25
    """The shortest deadline: a busy processor may hold up an answer for so long."""
    deadline_most_s: float = 1.0
    """The longest deadline of a peer that has answered us: three of the longest round trips."""
    deadline_dial_s: float = 1.5
    """For a peer that never answered us: a link may have to be made first."""

    carried: int = 3
    """How many of the first requests of a get the peers that are asked may carry on."""
    carry_width: int = 3
    """How many of the closest we know we ask on behalf of another peer."""
    carry_s: float = 0.5
    """The longest time for that; then the peer hears which contacts we know, and goes on itself."""
    carrying: int = 64
    """How many requests we carry on at a time; the rest get a plain answer."""

    replicas: int = 8
    """Peers that hold a record."""
    replicas_success: int = 5
    """How many of these must have it before `put` returns."""
    negative_s: float = 5.0
    """How long a value that was not found is not looked for again."""
    misses: int = 4096
    """Keys remembered as not found; the oldest goes first."""
    batches: int = 1024
    """Peers for which records wait to be stored at once: 48 MiB if all batches are full."""
    ttl_most_s: float = 3600.0
    """The longest time to live of a record: soft state, which its publisher renews."""
    skew_s: float = 5.0
    """How much the clocks of peers may differ."""
    records_per_publisher: int = 1024
    bytes_per_publisher: int = MIB
    """64 publishers at their limit fill the store."""
    store_bytes: int = 64 * MIB

    seeds_all_s: float = 60.0
    """How long after the start all seeds are greeted again and again (hivemind #624)."""
    seeds_all_every_s: float = 5.0
    seeds_one_every_s: float = 300.0
    """How often one seed at random is greeted later, so that two halves of a swarm meet again."""
    jitter: float = 0.2
    """By what share a repeated act is earlier or later, so that nodes do not act in step."""

    def __post_init__(self) -> None:
        if not 1 <= self.beta <= self.k <= CONTACTS_MAX:
            raise ValueError(f"beta={self.beta} <= k={self.k} <= {CONTACTS_MAX} does not hold")
        if not 1 <= self.replicas_success <= self.replicas <= self.k:
            replicas = f"replicas_success={self.replicas_success} <= replicas={self.replicas}"
            raise ValueError(f"{replicas} <= k={self.k} does not hold")
