"""The settings and limits of the transport, each with its reason."""

from dataclasses import dataclass

from p2pswarm.net.crypto.suite import Suite
from p2pswarm.settings.node_config import STATE_SHARE

NETWORK_ID_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """Settings of the links of one endpoint."""

    network_id: bytes = b"p2pswarm-public1"
    """16 bytes: a peer of another network is refused after its hello."""
    bulk_connections: int = 1
    """TCP connections for tensors at least, on a link that we dial to a peer nearby."""
    bulk_connections_far: int = 2
    """At least so many for a far peer: two suffer less from a loss; docs/bulk.md tells the rest."""
    grow_rtt_s: float = 0.002
    """More are tried if the round trip is at least this long: nearer, a window fills any path."""
    far_s: float = 0.01
    """A peer is far if its round trip is at least this long: it is not in the same town."""
    bulk_connections_max: int = 16
    """The most bulk connections on one link: each costs two threads."""
    chunk_bytes: int = 1024 * 1024
    """The largest payload of a bulk record; slow links use smaller ones (docs/figures.md)."""
    background_share: float = STATE_SHARE
    """Of what the node sends while anything urgent waits on any link: the rest is for that."""
    handshake_s: float = 5.0
    """The longest time from the first byte to a proven identity."""
    dial_s: float = 5.0
    """The longest time for TCP to connect."""
    idle_ping_s: float = 5.0
    """The time between two pings; they also measure the round trip."""
    dead_after_s: float = 15.0
    """A link that is silent this long ends: two pings may be lost, with one to spare."""
    path_silent_s: float = 10.0
    """A path that is silent this long may be dead: the link looks for another one."""
    path_wait_s: float = 10.0
    """A link without any path is kept this long: a relay that dies is replaced in a second, and a
    router that starts again takes longer than anybody wants to wait."""
    silent_max: int = 256
    """The most connections that have not said anything yet: a socket and a task each."""
    answered_max: int = 1024
    """The most connections between our answer and their proof, of 10 KiB each: for a round trip
    of 250 ms if 4,000 a second come."""
    upgrading_max: int = 256
    """The most connections that are becoming a WebSocket, or have become one without a proof, of
    100 KiB and 5 sockets each: for 4 round trips of 150 ms if 400 a second come."""
    dials_max: int = 512
    """The most dials under way, a socket each: for the peers of two stages, of 128 servers each,
    and as many lookups."""
    links_max: int = 1024
    """The most links: this limits what proven peers cost us."""
    bulk_joined_max: int = 2048
    """The most bulk connections that peers have joined to all links, a socket each: the most that
    128 servers of the next stage use."""
    suite: Suite = Suite.AES_GCM
    """The cipher of links that we dial; ChaCha20 suits a processor without AES."""

    def __post_init__(self) -> None:
        if len(self.network_id) != NETWORK_ID_BYTES:
            raise ValueError(f"network_id has {NETWORK_ID_BYTES} bytes, not {self.network_id!r}")
        for wanted in (self.bulk_connections, self.bulk_connections_far):
            if not 1 <= wanted <= self.bulk_connections_max:
                raise ValueError(
                    f"bulk connections are 1..{self.bulk_connections_max}, not {wanted}"
                )
