"""What a dial by several ways may cost, and the error that it ends with.

Units:   counts.
Errors:  Busy if no further way may be tried at once.
"""

from collections.abc import Sequence

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed, NobodyThere, PeerError, SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.net.config import TransportConfig


def check_attempts(attempts: int, config: TransportConfig, *, first: bool) -> None:
    """Raise Busy if a way may not be tried beside `attempts` others; each dial's first one may.

    So the sockets of all dials are as many as dials may be, however many ways each peer names.
    """
    if not first and attempts >= config.dials_max:
        raise Busy(f"{attempts} ways are being tried", config.dial_s)


def dial_failure(to: Contact, failures: Sequence[SwarmError]) -> SwarmError:
    """The error of a dial all of whose ways led nowhere, in the order in which they failed."""
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
