"""What a node tells people of its reachability, in a line, when it is known and when it changes.

Units:   none.
Errors:  none.
"""

from ipaddress import ip_address

from p2pswarm.base.ids import Address
from p2pswarm.reach.nat.standing import Belief, NatKind, State

ASSUMED = ", as one network of peers says"
DOCTOR = "p2pswarm doctor tells what to change"


class ReachabilityNews:
    """The lines of one node."""

    def __init__(self, port: int) -> None:
        """`port`: where the node listens."""
        self._port = port
        self._said = ""

    def line(self, belief: Belief, *, settled: bool, relayed: Address | None = None) -> str:
        """The line to print now; empty if nothing is known or new.

        `settled`: whether the router has been asked for a port; until then nobody despairs.
        `relayed`: where a relay passes us on.
        """
        if belief.reachable == "no" and relayed is not None:
            line, settled = f"reachable: relayed at {relayed}", True
        else:
            line = reachable_line(belief, self._port)
        if not line or line == self._said or (belief.reachable == "no" and not settled):
            return ""
        self._said = line
        return line


def reachable_line(belief: Belief, port: int) -> str:
    """A belief in a line; empty while nobody has tried."""
    assumed = "" if belief.sure else ASSUMED
    if belief.reachable != "no":
        return f"reachable: {belief.reachable} at {belief.address}{assumed}"
    if belief.state is not State.NATTED:
        return ""
    if belief.kind is NatKind.FIREWALL:
        return f"reachable: no, a firewall keeps out who dials port {port}{assumed}; {DOCTOR}"
    return f"reachable: no, the router before this machine forwards no port{assumed}; {DOCTOR}"


def on_this_machine_alone(bound: Address) -> bool:
    """Whether a node listens where nobody but this machine can dial it."""
    try:
        return ip_address(bound.host.partition("%")[0]).is_loopback
    except ValueError:
        return False
