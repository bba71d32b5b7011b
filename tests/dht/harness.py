"""Peers, contacts and round trips for the DHT's tests."""

from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.lookup import Lookup, LookupOptions
from p2pswarm.dht.timeouts import TimeoutEstimator
from p2pswarm.ids import Address, Contact, PeerId

KEY = bytes(32)  # so that a peer's distance to it is its number
OWN = (1 << 200).to_bytes(32)
CONFIG = DhtConfig()
EPOCH_S = 1_700_000_000.0
HOME = "10.0.0.1:1"


def raw(number: int) -> bytes:
    return number.to_bytes(32)


def contact(number: int) -> Contact:
    return Contact(PeerId(raw(number)), Address("10.0.0.1", 1))


def contacts(*numbers: int) -> list[Contact]:
    return [contact(number) for number in numbers]


def a_lookup(*start: int, settle: int = 3, patience_s: float = 5.0) -> Lookup:
    options = LookupOptions(width=20, settle=settle, patience_s=patience_s)
    lookup = Lookup(KEY, OWN, options, TimeoutEstimator(CONFIG), 0.0)
    lookup.learned(contacts(*start))
    return lookup
