"""Reports of who leads the run, who stands by, and whose votes lack."""

from dataclasses import dataclass

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Report


@dataclass(frozen=True, slots=True)
class Leads(Report):
    """This trainer coordinates the run from now on, and `version` is current."""

    term: int
    version: int

    @property
    def text(self) -> str:
        return f"this trainer coordinates the run: it goes on after step {self.version}"


@dataclass(frozen=True, slots=True)
class SteppedDown(Report):
    """Another trainer coordinates the run, or will."""

    reason: str

    @property
    def text(self) -> str:
        return f"this trainer stands by from now on: {self.reason}"


@dataclass(frozen=True, slots=True)
class StandbyTaken(Report):
    """Another trainer coordinates the run, and has taken this one as a standby."""

    peer: bytes
    address: str

    @property
    def text(self) -> str:
        leader = f"trainer {PeerId(self.peer).short} at {self.address}"
        return f"{leader} leads the run, and this one waits to take its place"


@dataclass(frozen=True, slots=True)
class TrainerEnlisted(Report):
    """Another trainer stands by."""

    peer: bytes
    address: str

    @property
    def text(self) -> str:
        return f"trainer {PeerId(self.peer).short} at {self.address} stands by"


@dataclass(frozen=True, slots=True)
class VotesLacking(Report):
    """Nothing can be decided, because these voters are silent and hold the majority."""

    voters: tuple[tuple[bytes, str], ...]
    """Peer and address; "" if that is not known."""

    @property
    def text(self) -> str:
        names = ", ".join(
            PeerId(peer).short + (f" at {address}" if address else "")
            for peer, address in self.voters
        )
        return (
            f"nothing can be decided without an answer of {names}: start them again with their "
            "`state` folders, or go on from a checkpoint with `p2pswarm train --resume`"
        )


@dataclass(frozen=True, slots=True)
class VotesAlone(Report):
    """Others stand by, and none of them could lead: nobody votes but this trainer."""

    @property
    def text(self) -> str:
        return (
            "no standby can take over yet: this trainer votes alone, and strangers do not; invite "
            "a server, or one trainer more (p2pswarm invite), so that three vote"
        )
