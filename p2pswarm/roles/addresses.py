"""Where a node listens, where others dial it, and what to say when nobody can be reached.

Units:   none.
Errors:  Unusable for an address that the user gave and that is none.
"""

from collections.abc import Callable, Sequence

from p2pswarm.config import NodeConfig
from p2pswarm.errors import BadHandshake, SwarmError, Unusable
from p2pswarm.ids import Address, Contact

USUAL_PORT = 4000
EVERYWHERE = "0.0.0.0"  # noqa: S104 - all of this host's addresses
EVERY_HOST = {EVERYWHERE, "::"}


def given(text: str, key: str) -> Address:
    """An address that the user gave under `key`; others dial it."""
    address = _parsed(text, key)
    if not address.port:
        raise Unusable(f"{key}: {text!r}: nobody can be dialled at port 0")
    return address


def seeds(config: NodeConfig) -> tuple[Contact, ...]:
    """The nodes to join the swarm through."""
    return tuple(Contact(None, given(text, "bootstrap")) for text in config.bootstrap)


def places_to_listen(text: str) -> tuple[Address, ...]:
    """Where to listen, the first that is possible; without a host, at all of this machine's."""
    if not text:
        return Address(EVERYWHERE, USUAL_PORT), Address(EVERYWHERE, 0)
    everywhere = text.strip().startswith(":")
    return (_parsed(EVERYWHERE + text.strip() if everywhere else text, "listen"),)


def announced(
    bound: Address, config: NodeConfig, own_host: Callable[[tuple[str, ...]], str]
) -> Address:
    """What others dial: as the user says, else where we listen.

    For a node that listens everywhere, `own_host` finds this machine's address on the way to hosts.
    """
    if config.network.announce:
        return given(config.network.announce, "network.announce")
    if bound.host not in EVERY_HOST:
        return bound
    return Address(own_host(tuple(seed.address.host for seed in seeds(config))), bound.port)


def check(config: NodeConfig) -> None:
    """Raise Unusable if any address of the settings is none."""
    seeds(config)
    places_to_listen(config.listen)
    if config.network.announce:
        given(config.network.announce, "network.announce")


def why_nobody(failures: Sequence[SwarmError]) -> str:
    """One line when no bootstrap address could be joined, from each one's failure."""
    reasons = "; ".join(str(failure) for failure in failures)
    if all(isinstance(failure, BadHandshake) for failure in failures):
        return f"no bootstrap address is a node that we can join: {reasons}"
    return f"no bootstrap address answers: {reasons}; is a node running there, and its port open?"


def _parsed(text: str, key: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise Unusable(f"{key}: {error}") from error
