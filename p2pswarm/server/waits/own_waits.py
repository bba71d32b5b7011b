"""OwnWaits: what one session of a server does and waits for, as it answers who asks."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from p2pswarm.base.estimates import Ema
from p2pswarm.models.compute.base import Key
from p2pswarm.run.averaging.round import MissingPieces
from p2pswarm.run.messages.field_limits import SECONDS_MAX, Work
from p2pswarm.run.messages.waits import (
    WAITS_TOLD_MAX,
    AveragingNow,
    ComputingNow,
    PeerWait,
    ServerWaits,
)
from p2pswarm.server.waits.phase_clock import PhaseClock, ServerPhase, phase_of

Clock = Callable[[], float]
SMOOTHING = 0.1  # of the usual time of a microbatch: about the last twenty


class OwnWaits:
    """The doings of one session: each part tells when it begins something and when that is over.

    It costs some additions for each microbatch. What is here anyway (a queue, inputs that wait for
    gradients) is not kept twice: who answers a question gives it to `view`.
    """

    def __init__(self, now_s: float) -> None:
        self.clock = PhaseClock(now_s)
        self._computing: tuple[int, Work, float] | None = None
        """Microbatch, work, and since when."""
        self._usual_s = {work: Ema(SMOOTHING) for work in Work}
        self._came_s: float | None = None
        self._gives: dict[tuple[Key, bytes], float] = {}
        """The results that a peer is to take, by microbatch, and since when."""
        self._averaging: tuple[int, float] | None = None
        """The step, and since when."""

    def on_input(self, now_s: float) -> None:
        """A microbatch or a gradient is here."""
        self._came_s = now_s

    def on_compute(self, microbatch: int, work: Work, now_s: float) -> None:
        """The computing of a microbatch begins."""
        self._computing = microbatch, work, now_s
        self.clock.on_begin(phase_of(work), now_s)

    def on_compute_end(self, now_s: float) -> None:
        """It is over, well or not."""
        assert self._computing is not None, "it has begun"
        _, work, since_s = self._computing
        self._computing = None
        self._usual_s[work].add(max(0.0, now_s - since_s))
        self.clock.on_end(phase_of(work), now_s)

    def on_offer(self, key: Key, peer: bytes, now_s: float) -> None:
        """A peer is asked to take a result."""
        self._gives[key, peer] = now_s

    def on_offer_end(self, key: Key, peer: bytes) -> None:
        """It has taken it and computed, or it is asked no more."""
        self._gives.pop((key, peer), None)

    def on_sending(self, now_s: float, *, begins: bool) -> None:
        """The bytes of a result set out, or are all with its receiver."""
        change = self.clock.on_begin if begins else self.clock.on_end
        change(ServerPhase.TRANSFER, now_s)

    def on_averaging(self, step: int, now_s: float) -> None:
        """An order to average begins to be carried out."""
        self._averaging = step, now_s
        self.clock.on_begin(ServerPhase.AVERAGING, now_s)

    def on_averaging_end(self, now_s: float) -> None:
        """It is over, well or not."""
        self._averaging = None
        self.clock.on_end(ServerPhase.AVERAGING, now_s)

    def on_commit(self, now_s: float) -> None:
        """An order to commit is here."""
        self.clock.on_begin(ServerPhase.COMMIT, now_s)

    def on_commit_end(self, now_s: float) -> None:
        """It is applied, or it cannot be."""
        self.clock.on_end(ServerPhase.COMMIT, now_s)

    def view(
        self,
        now_s: float,
        *,
        stage: int,
        version: int | None,
        state: str,
        queued: int,
        coming: int,
        away: Mapping[Key, float],
        held_by: Mapping[Key, bytes],
        missing: MissingPieces,
        broken: Iterable[bytes],
        unheard_s: float,
    ) -> ServerWaits:
        """Return the answer to `AskWaits`.

        `away`: since when microbatches wait for their gradients; `held_by`: who has them.
        `missing`: of the averaging.
        """
        gradients = {(key, held_by[key]): at_s for key, at_s in away.items() if key in held_by}
        return ServerWaits(
            stage,
            version,
            state,
            queued,
            coming,
            self._computing_now(now_s),
            None if self._came_s is None else _ago(self._came_s, now_s),
            tuple(_by_peer(self._gives, now_s)),
            tuple(_by_peer(gradients, now_s)),
            self._averaging_now(missing, now_s),
            tuple(broken)[:WAITS_TOLD_MAX],
            min(SECONDS_MAX, unheard_s),
        )

    def _computing_now(self, now_s: float) -> ComputingNow | None:
        if self._computing is None:
            return None
        microbatch, work, since_s = self._computing
        return ComputingNow(microbatch, work, _ago(since_s, now_s), self._usual_s[work].value)

    def _averaging_now(self, missing: MissingPieces, now_s: float) -> AveragingNow | None:
        if self._averaging is None:
            return None
        step, since_s = self._averaging
        kind, lack = missing.first
        return AveragingNow(step, _ago(since_s, now_s), lack[:WAITS_TOLD_MAX], len(lack), kind)


def _ago(at_s: float, now_s: float) -> float:
    return min(SECONDS_MAX, max(0.0, now_s - at_s))


def _by_peer(waits: Mapping[tuple[Key, bytes], float], now_s: float) -> Iterator[PeerWait]:
    """What is waited for of each peer, the longest waits first."""
    times: dict[bytes, list[float]] = {}
    for (_, peer), since_s in waits.items():
        times.setdefault(peer, []).append(since_s)
    ordered = sorted(times, key=lambda peer: (min(times[peer]), peer))
    for peer in ordered[:WAITS_TOLD_MAX]:
        yield PeerWait(peer, len(times[peer]), _ago(min(times[peer]), now_s))


@contextmanager
def averaging(waits: OwnWaits, step: int, clock: Clock) -> Iterator[None]:
    """Run the block in which an order to average is carried out."""
    waits.on_averaging(step, clock())
    try:
        yield
    finally:
        waits.on_averaging_end(clock())


@contextmanager
def committing(waits: OwnWaits, clock: Clock) -> Iterator[None]:
    """Run the block in which a commit is applied."""
    waits.on_commit(clock())
    try:
        yield
    finally:
        waits.on_commit_end(clock())
