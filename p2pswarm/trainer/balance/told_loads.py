"""What each server told last of its capacity, and how long its queue is in the mean of a minute.

Units:   seconds, bytes; peers by their 32-byte id.
Errors:  none; numbers that make no sense count as not known.
Source:  docs/rebalancing.md, "What is measured".
"""

from dataclasses import dataclass

from p2pswarm.run.messages.membership import Load, load_every_s
from p2pswarm.run.messages.types import MEMBERS_MAX

QUEUE_S = 60.0  # of a server's queue a mean is taken: right after a commit it is empty
SECONDS_LEAST, SECONDS_MOST = 1e-5, 1e5  # of a microbatch: what is told beyond makes no sense


@dataclass(frozen=True, slots=True)
class ToldLoad:
    """What a server told last."""

    stage: int
    seconds: float | None
    """A microbatch; None if it is not known."""
    error: float | None
    load: Load
    queued: float
    """How long its queue is in the mean of the last minute."""
    samples: int


class ToldLoads:
    """The last word of each server of a run."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._told: dict[bytes, ToldLoad] = {}

    def hear(self, peer: bytes, stage: int, load: Load, servers: int) -> ToldLoad:
        """A server of a stage tells; `servers`: how many there are, by which all tell as often."""
        measured, last = load.capacity.measured, stage == self._stages - 1
        seconds = measured.seconds(last=last)
        if seconds is not None and not SECONDS_LEAST <= seconds <= SECONDS_MOST:
            seconds = None
        before = self._told.pop(peer, None)
        if before is not None and before.stage != stage:
            before = None  # that was another queue
        most = max(1, round(QUEUE_S / load_every_s(servers)))
        samples = min(before.samples + 1, most) if before else 1
        queued = before.queued if before else 0.0
        queued += (load.queued - queued) / samples
        told = ToldLoad(stage, seconds, measured.relative_error(last=last), load, queued, samples)
        self._told[peer] = told
        if len(self._told) > MEMBERS_MAX:
            del self._told[next(iter(self._told))]
        return told

    def of(self, peer: bytes) -> ToldLoad | None:
        """What a server told last; None if it has said nothing."""
        return self._told.get(peer)

    def forget(self, peer: bytes) -> None:
        """A server has died."""
        self._told.pop(peer, None)

    def speed(self, peer: bytes, costs: tuple[float, ...]) -> tuple[float | None, float | None]:
        """Of a server, by what its stage costs, and how sure that is."""
        told = self._told.get(peer)
        if told is None or told.seconds is None:
            return None, None
        return costs[told.stage] / told.seconds, told.error

    def state_bytes(self) -> tuple[int | None, ...]:
        """Of each stage, as most of its servers tell."""
        told: list[list[int]] = [[] for _ in range(self._stages)]
        for one in self._told.values():
            if (nbytes := one.load.capacity.state_bytes) is not None:
                told[one.stage].append(nbytes)
        return tuple(sorted(each)[(len(each) - 1) // 2] if each else None for each in told)
