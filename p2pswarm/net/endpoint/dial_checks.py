"""The checks before a dial and after a handshake, and the error that a failed dial raises.

Errors:  DialFailed if the peer may still work; BadHandshake if it is not the right one; Busy if
         too much is under way.
"""

from collections.abc import Sequence

from p2pswarm.base.errors import (
    BadHandshake,
    Busy,
    DialFailed,
    LinkLost,
    NobodyThere,
    PeerError,
    SwarmError,
)
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake
from p2pswarm.net.endpoint.link_request import BulkJoin
from p2pswarm.net.link.path import Path, PathKind
from p2pswarm.net.link.session import Introduction, Session, introduced_card, read_introduction

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  to bind, not to dial
"""All of a host's addresses, and the one to name until a peer has told us where it sees us."""
NOWHERE = "127.0.0.1"
RELAYED_BULK_MAX = 4  # circuits are scarce, and a relay is one bottleneck for all of them


def meet(
    handshake: Handshake, us: PeerId, remote: Address, dialled: Address | None
) -> tuple[Session, Introduction]:
    """The session that a finished handshake makes, and the peer's introduction.

    `dialled` is the address that we dialled, None if the peer dialled us. Raises DialFailed
    or BadHandshake if the other end has our own identity, and BadHandshake if its
    introduction cannot be read, or its card is not its own.
    """
    result = handshake.result
    if result.peer == us:
        if dialled is not None:
            raise DialFailed(f"{dialled} is ourselves")
        raise BadHandshake("it has our own identity: is a key file in use twice?")
    introduction = read_introduction(result.payload)
    address = dialled or Address(remote.host, 0 if remote.circuit else introduction.listen_port)
    session = Session(
        peer=result.peer,
        contact=Contact(result.peer, address),
        remote=remote,
        dialled=dialled is not None,
        incarnation=introduction.incarnation,
        keys=result.keys,
        exporter=result.exporter,
        card=introduced_card(introduction, result.peer),
        introduced=handshake.payload,
    )
    return session, introduction


def introduced_port(us: Contact) -> int:
    """The port to introduce ourselves with: 0 if peers reach us at another host than ours."""
    return 0 if us.address.circuit or us.address.web else us.address.port


def bulk_allowed(wanted: int, joined: int, path: Path | None) -> int:
    """Return how many of the wanted bulk connections a link may dial, beside those it has."""
    relayed = path is not None and path.kind is PathKind.RELAYED
    return max(0, min(wanted, RELAYED_BULK_MAX - joined)) if relayed else wanted


def check_join(asked: BulkJoin, path: Path | None) -> None:
    """Raise BadHandshake unless a bulk connection may join a link; `path`: what carries the link.

    Only the side that took the path candidate joins bulk connections to it.
    """
    if path is None or path.candidate is not None:
        raise BadHandshake(f"it joins session {asked.session.hex()}, which waits for none")


def dial_error(
    error: SwarmError | TimeoutError, at: Address, config: TransportConfig, *, connected: bool
) -> SwarmError:
    """The error of a dial that failed; `connected`: whether it failed after TCP connected."""
    match error:
        case BadHandshake():
            return BadHandshake(f"{at}: {error}")
        case LinkLost() if connected:
            return DialFailed(f"{at} closed the connection in the handshake")
        case SwarmError():
            return error
        case _ if connected:
            return BadHandshake(f"{at} stalled in the handshake")
        case _:
            return DialFailed(f"{at}: no answer within {config.dial_s:g} s")


def join_error(error: SwarmError | TimeoutError, peer: PeerId) -> LinkLost:
    """The error that ends a link when its bulk connection could not be made."""
    why = f": {error}" if isinstance(error, SwarmError) else " stalled"
    return LinkLost(f"link to {peer.short}: no bulk connection can be made{why}")


def own_contact(
    us: PeerId, announced: Address | None, listening: Address | None, observed_host: str
) -> Contact:
    """Our own contact, as others should dial it.

    `announced`: the address in the user's settings; `listening`: the bound address, if any;
    `observed_host`: the host at which a peer sees us, or empty.
    """
    if announced is not None:
        return Contact(us, announced)
    if listening is None:
        return Contact(us, Address(observed_host or NOWHERE, 0))
    if listening.host in EVERYWHERE:
        heard = observed_host and (listening.host == "::" or ":" not in observed_host)
        host = observed_host if heard else EVERYWHERE[listening.host]  # [::] hears IPv4 too
        return Contact(us, Address(host, listening.port))
    return Contact(us, listening)


def check_attempts(attempts: int, config: TransportConfig, *, first: bool) -> None:
    """Raise Busy if a path candidate may not be tried beside `attempts` others.

    The first one of each dial may. So the sockets of all dials are as many as dials may be, however
    many candidates each peer names.
    """
    if not first and attempts >= config.dials_max:
        raise Busy(f"{attempts} ways are being tried", config.dial_s)


def dial_failure(to: Contact, failures: Sequence[SwarmError]) -> SwarmError:
    """The error of a dial all of whose candidates have failed, in this order."""
    if len(failures) == 1:
        return failures[0]
    name = to.address if to.peer is None else to.peer.short
    if not failures:
        return DialFailed(
            f"{name}: no address of it is known that may be dialled now: "
            "it has to announce one, or to dial us"
        )
    why = f"{name}: none of its {len(failures)} addresses leads to it: " + "; ".join(
        str(each) for each in failures
    )
    if all(isinstance(each, NobodyThere) for each in failures):
        return NobodyThere(why)
    if all(isinstance(each, PeerError) for each in failures):
        return BadHandshake(why)
    return DialFailed(why)
