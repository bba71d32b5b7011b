"""What a simulated run needs of its voters and trainers, so that it can go on without one of them.

Errors:  none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import VoterId


@dataclass(frozen=True, slots=True)
class ChainDisk:
    """One machine's chain, as it is now or will be when the machine is back."""

    peer: bytes
    chain: MemoryChain

    @property
    def voter(self) -> VoterId:
        """The voter that it is."""
        return VoterId(self.peer, self.chain.memory)


def may_lose_disk(disks: Sequence[ChainDisk], victim: ChainDisk, genesis: Genesis) -> bool:
    """Whether the others can elect a leader and decide without the disk of one machine.

    They need a majority of all voters that the newest records name, decided or only accepted, and
    a trainer that may lead.
    """
    left = [disk for disk in disks if disk.peer != victim.peer]
    read = [disk.chain.restored(genesis) for disk in disks]
    head = max((one.follower.chain.head for one in read), key=lambda head: head.height)
    accepted = [one.register.accepted for one in read]
    beyond = [record for record in accepted if record and record.height >= head.height - 1]
    electorates = [head.voters, *(record.voters for record in beyond)]
    trainers = [head.trainers, *(record.trainers for record in beyond)]
    peers = {disk.peer for disk in left}
    voters = {disk.voter for disk in left}
    led = all(peers & set(named) for named in trainers)
    return led and all(_majority(named, voters) for named in electorates)


def _majority(named: Iterable[VoterId], there: set[VoterId]) -> bool:
    named = tuple(named)
    return 2 * sum(voter in there for voter in named) > len(named)
