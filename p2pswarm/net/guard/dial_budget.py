"""DialBudget: how often addresses are dialled that strangers wrote where many can write.

Source:  as `discovery/dht/unverified_contacts.py`: who may be made to send where.
"""

from collections.abc import Collection

from p2pswarm.base.ids import Address
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of

DIALS_MAX = 64  # of one look: a swarm has fewer runs, and their trainers are asked at once
PLACE_DIALS = 2  # of one address and port: the id of a trainer that was started again, and the old
HOST_DIALS = 4  # trainers of one machine; a third party hardly notices
NETWORK_DIALS = 8  # of one public /24 or /48
RANGE_DIALS = 16  # of one public /16 or /32


class DialBudget:
    """Counts the dials of one look at what strangers have written.

    Whoever writes an address can name anybody's, under as many ids as it likes. So each address,
    host and network is dialled a few times, whoever names it. Hosts that are linked anyway are
    dialled as often as they are named.
    """

    def __init__(self, known: Collection[str] = (), dials_max: int = DIALS_MAX) -> None:
        """`known`: hosts that need no bound."""
        self._known = frozenset(known)
        self._left = dials_max
        self._dials: GroupCounter[str] = GroupCounter()

    def take(self, at: Address) -> bool:
        """Return whether an address may be dialled; if so, that counts."""
        if at.host in self._known:
            return True
        bounds = _bounds(at)
        if not self._left or any(self._dials[group] >= most for group, most in bounds.items()):
            return False
        self._left -= 1
        for group in bounds:
            self._dials.add(group)
        return True


def _bounds(at: Address) -> dict[str, int]:
    """The groups that an address is in, each with the most dials."""
    groups = address_groups(at.host)
    bounds = {f"{at.host}:{at.port}": PLACE_DIALS, groups[-1]: HOST_DIALS}
    if groups[0] != NAMES and scope_of(at.host) is Scope.PUBLIC:
        bounds |= {groups[-2]: NETWORK_DIALS, groups[-3]: RANGE_DIALS}
    return bounds
