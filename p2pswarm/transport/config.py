"""The transport's settings and limits, each with its reason.

Units:   seconds (`_s`), bytes (`_bytes`).
"""

from dataclasses import dataclass

from p2pswarm.crypto.suite import Suite

NETWORK_ID_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportConfig:
    """How links are made and kept."""

    network_id: bytes = b"p2pswarm-public1"
    """16 bytes: peers of another network are turned away in the hello."""
    bulk_connections: int = 1
    """TCP connections for tensors, for a link that we dial to a peer nearby."""
    bulk_connections_far: int = 2
    """The least for a peer that is far: two take a loss better, more only queue (bench/LOG.md)."""
    far_s: float = 0.01
    """Round trip from which a peer is far: not in the same town."""
    bulk_connections_max: int = 16
    """How many a peer may join to one link: each costs two threads."""
    chunk_bytes: int = 1024 * 1024
    """Payload of one bulk record at most; slow links get smaller ones. See bench/LOG.md."""
    handshake_s: float = 5.0
    """From the first byte to a proven identity; a peer that stalls longer is dropped."""
    dial_s: float = 5.0
    """For TCP to connect."""
    idle_ping_s: float = 5.0
    """A ping goes out this often; it measures the round trip too."""
    dead_after_s: float = 15.0
    """Silence after which the link is given up: two lost pings and one to spare."""
    pending_max: int = 64
    """Connections in handshake at once: bounds what strangers cost us."""
    pending_per_host_max: int = 16
    """The same from one address."""
    links_max: int = 1024
    """Links at once: bounds what proven strangers cost us."""
    suite: Suite = Suite.AES_GCM
    """The cipher of links that we dial; ChaCha20 where the processor has no AES."""

    def __post_init__(self) -> None:
        if len(self.network_id) != NETWORK_ID_BYTES:
            raise ValueError(f"network_id has {NETWORK_ID_BYTES} bytes, not {self.network_id!r}")
        for wanted in (self.bulk_connections, self.bulk_connections_far):
            if not 1 <= wanted <= self.bulk_connections_max:
                raise ValueError(
                    f"bulk connections are 1..{self.bulk_connections_max}, not {wanted}"
                )
