"""Publisher: signs our own values, chooses their holders and judges the outcome of a put.

Units:   seconds on the caller's monotonic clock; `_ms` milliseconds since 1970 on the wall clock.
Errors:  ValueError for our own misuse; NoRoute, Refused and Unusable from `holders_of`.
"""

from bisect import bisect_left
from collections.abc import Sequence

from p2pswarm.base.errors import NoRoute, Refused, Unusable
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import (
    REGION_FIRST,
    REGION_MAX,
    REGION_SUCCESS,
    Spread,
    keys_elsewhere,
)
from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.publications import Publication, Publications
from p2pswarm.discovery.dht.put_value import PutOptions, PutValue
from p2pswarm.discovery.dht.record_store import Verdict
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity

CLOCK_VERDICTS = frozenset({Verdict.EXPIRED, Verdict.FUTURE})  # our clock and theirs differ
_VERDICTS = frozenset(map(int, Verdict))


class Publisher:
    """Signs our values, each with a higher sequence number than the last."""

    def __init__(self, identity: Identity, config: DhtConfig, publications: Publications) -> None:
        self._identity = identity
        self._config = config
        self._publications = publications
        self._seq = 0

    def publication(
        self, key: bytes, subkey: bytes, value: bytes, ttl_s: float, now_ms: int
    ) -> Publication:
        """A value with its sequence number; ValueError if no peer keeps a value that long."""
        if not 0 < ttl_s <= self._config.ttl_most_s:
            raise ValueError(f"a value lives up to {self._config.ttl_most_s:g} s, not {ttl_s}")
        # the wall clock goes on while the node is down, so its numbers rise after a restart
        self._seq = max(self._seq + 1, now_ms)
        return Publication(key, subkey, value, self._seq, ttl_s, 0.0)

    def sign(self, publication: Publication, now_ms: int) -> Record:
        """The signed record of a publication; its time to live starts now."""
        expires_ms = now_ms + int(1000 * publication.ttl_s)
        key, subkey = publication.key, publication.subkey
        return sign(self._identity, key, subkey, publication.value, publication.seq, expires_ms)

    def copies(self, record: Record) -> list[Record]:
        """The record under the other keys where it is sought if it is not found under its own."""
        rest = record.subkey, record.value, record.seq, record.expires_ms
        return [sign(self._identity, key, *rest) for key in keys_elsewhere(record.key)]

    def keep(self, publication: Publication, now_s: float) -> None:
        """Publish a value again from time to time; ValueError if there are too many values."""
        self._publications.keep(publication, now_s)

    def options(self, failure_share: float, spread: Spread, *, waited_for: bool) -> PutOptions:
        """The options of a put; when contacts are often dead, all holders are asked at once."""
        config = self._config
        crowded = spread is Spread.CROWDED
        success = REGION_SUCCESS if crowded else config.replicas_success
        if not waited_for:
            success = 0
        calm = failure_share <= config.calm_share
        all_at_once = REGION_FIRST if crowded else config.replicas
        return PutOptions(
            replicas={Spread.EVEN: config.replicas, Spread.DENSE: config.k}.get(spread, REGION_MAX),
            success=success,
            first=success if calm or not waited_for else all_at_once,
            patience_s=config.lookup_s,
        )

    def candidates(self, key: bytes, found: Sequence[Contact], own: Contact) -> list[Contact]:
        """The k contacts closest to a key, with ourselves among them if we are a server."""
        near = [each for each in found if each.peer is not None]
        if self._config.server and own.peer is not None:
            distances = [each.peer.distance(key) for each in near if each.peer]
            near.insert(bisect_left(distances, own.peer.distance(key)), own)
        return near[: self._config.k]


def holders_of(put_value: PutValue, own: PeerId) -> int:
    """How many peers hold the record; raises an error with the reason if none does.

    By our own clock we would keep it ourselves: that says nothing where all others refuse it for
    their clocks, since they would not believe it.
    """
    refusals = {Verdict(each) for each in put_value.refusals if each in _VERDICTS}
    clocks_differ = bool(refusals & CLOCK_VERDICTS)
    others = sum(1 for each in put_value.held_by if each.peer != own)
    if put_value.holders and (others or not clocks_differ):
        return put_value.holders
    if clocks_differ:
        raise Unusable(
            "the clocks of other peers differ by minutes: set this machine's clock, or theirs"
        )
    if Verdict.OLDER in refusals:
        raise Refused(
            "another peer's value under this subkey is newer: a subkey that is this node's id is "
            "its own"
        )
    if refusals:
        names = ", ".join(sorted(each.name for each in refusals))
        raise Refused(f"no peer kept the value: {names}")
    raise NoRoute("no peer could be reached to keep the value")
