"""Addresses that a node listens at and announces, and the error text when no seed answers."""

from collections.abc import Callable, Sequence

from p2pswarm.base.errors import BadHandshake, SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.transient_errors import NobodyAnswers
from p2pswarm.settings.node_config import NodeConfig

USUAL_PORT = 4000
RELAY_HOST_CHARS_MAX = 200  # messages have 262 characters for an address through it
EVERY_HOST = ("::", "0.0.0.0")  # noqa: S104  both families, or IPv4 where a host has no IPv6


def given(text: str, key: str) -> Address:
    """An address that the user gave under `key`; others dial it."""
    address = _parsed(text, key)
    if not address.port:
        raise Unusable(f"{key}: {text!r}: nobody can be dialled at port 0")
    return address


def seeds(config: NodeConfig) -> tuple[Contact, ...]:
    """The nodes to join the swarm through."""
    return tuple(Contact(None, given(text, "bootstrap")) for text in config.bootstrap)


def relays(config: NodeConfig) -> tuple[Contact, ...]:
    """The relays through which others reach this node."""
    named = [given(text, "network.relays") for text in config.network.relays]
    for each in named:
        if each.circuit:
            raise Unusable(f"network.relays: {str(each)!r}: name the relay alone, {each.place}")
        if len(each.host) > RELAY_HOST_CHARS_MAX:
            raise Unusable(
                f"network.relays: a host of {len(each.host)} characters: give its number"
            )
    return tuple(Contact(None, each) for each in named)


def places_to_listen(text: str) -> tuple[Address, ...]:
    """Places to listen, the first possible one counts. Without a host: on all addresses."""
    if not text:
        return tuple(Address(host, port) for port in (USUAL_PORT, 0) for host in EVERY_HOST)
    if not text.strip().startswith(":"):
        return (_parsed(text, "listen"),)
    port = _parsed(f"localhost{text.strip()}", "listen").port
    return tuple(Address(host, port) for host in EVERY_HOST)


def announced(
    bound: Address, config: NodeConfig, own_host: Callable[[tuple[str, ...]], str]
) -> Address:
    """The address that others dial: the user's choice, else where we listen.

    For a node that listens on all addresses, `own_host` finds this machine's address towards hosts.
    """
    if config.network.announce:
        return given(config.network.announce, "network.announce")
    if bound.host not in EVERY_HOST:
        return bound
    return Address(own_host(tuple(seed.address.host for seed in seeds(config))), bound.port)


def check(config: NodeConfig) -> None:
    """Raise Unusable if an address of the settings cannot be read."""
    seeds(config)
    relays(config)
    for place in places_to_listen(config.listen):
        if place.web or place.circuit:
            raise Unusable(
                f"listen: {str(place)!r}: listen on HOST:PORT; for WebSocket: --relay-web"
            )
    if config.network.announce:
        given(config.network.announce, "network.announce")


def why_nobody(failures: Sequence[SwarmError]) -> Unusable:
    """The error, one line, where no seed could be joined, from the failure of each."""
    reasons = "; ".join(str(failure) for failure in failures)
    if all(isinstance(failure, BadHandshake) for failure in failures):
        return Unusable(f"no bootstrap address is a node that we can join: {reasons}")
    return NobodyAnswers(
        f"no bootstrap address answers: {reasons}; is a node running there, and its port open?"
    )


def _parsed(text: str, key: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise Unusable(f"{key}: {error}") from error
