"""DialBudget: how often addresses are dialled that strangers wrote where many can write.

Source:  as `discovery/dht/unverified_contacts.py`: who may be made to send where.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from p2pswarm.base.ids import Address
from p2pswarm.net.guard.connection_limits import GroupCounter
from p2pswarm.net.os.addresses import NAMES, Scope, address_groups, scope_of

DIALS_MAX = 64  # of one look: a swarm has fewer runs, and their trainers are asked at once
HOST_DIALS = 4  # trainers of one machine; a third party hardly notices
NETWORK_DIALS = 8  # of one public /24 or /48
RANGE_DIALS = 16  # of one public /16 or /32


class DialBudget:
    """Counts the dials of one look at what strangers have written.

    Whoever writes an address can name anybody's, under as many ids as it likes, and several for
    each. So each host and network is dialled a few times, whoever names it. Places where we have a
    link are dialled as often as they are named: a relay may have many peers.
    """

    def __init__(self, known: Collection[Address] = (), dials_max: int = DIALS_MAX) -> None:
        """`known`: places that need no bound."""
        self._known = frozenset(known)
        self._left = dials_max
        self._dials: GroupCounter[str] = GroupCounter()

    def take(self, named: Iterable[Address]) -> bool:
        """Return whether a peer may be dialled where it is said to be; if so, all that counts."""
        wanted: Counter[str] = Counter()
        most: dict[str, int] = {}
        for place in {_place(at): None for at in named if _place(at) not in self._known}:
            bounds = _bounds(place)
            most |= bounds
            wanted.update(bounds.keys())
        if not wanted:
            return True
        if not self._left or any(
            self._dials[group] + wanted[group] > most[group] for group in most
        ):
            return False
        self._left -= 1
        self._dials.update(wanted)
        return True


def _place(at: Address) -> Address:
    """Where a connection leads, also for a peer behind a relay."""
    return Address(at.host, at.port)


def _bounds(at: Address) -> dict[str, int]:
    """The groups that an address is in, each with the most dials."""
    groups = address_groups(at.host)
    bounds = {groups[-1]: HOST_DIALS}
    if groups[0] != NAMES and scope_of(at.host) is Scope.PUBLIC:
        bounds |= {groups[-2]: NETWORK_DIALS, groups[-3]: RANGE_DIALS}
    return bounds
