"""The capacity of a server, as it measures itself; None where nobody knows yet.

A server's forward, backward and transfers overlap, so the longest of them limits it. A number that
jitters is told with its standard error: who decides by it can tell a difference from noise.

Source:  docs/rebalancing.md; West, "Updating Mean and Variance Estimates" (CACM 1979), for means
         and variances of weighted samples one by one.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_S = 60.0  # a sample of a minute ago weighs 1/e: long against jitter, short against a move


class RecentMean:
    """A mean in which older samples weigh less, with its standard error."""

    __slots__ = ("_last_s", "_mean", "_spread", "_weight", "_weights_squared", "_window_s")

    def __init__(self, window_s: float = WINDOW_S) -> None:
        """`window_s`: a sample so old weighs 1/e of a new one."""
        if not window_s > 0:
            raise ValueError(f"a window of {window_s} s")
        self._window_s = window_s
        self._last_s = -math.inf
        self._mean = self._spread = 0.0
        self._weight = self._weights_squared = 0.0

    def add(self, sample: float, now_s: float) -> None:
        """Add one measurement."""
        fade = math.exp(-max(0.0, now_s - self._last_s) / self._window_s) if self._weight else 0.0
        self._last_s = max(self._last_s, now_s)
        self._weight = self._weight * fade + 1.0
        self._weights_squared = self._weights_squared * fade * fade + 1.0
        off = sample - self._mean
        self._mean += off / self._weight
        self._spread = self._spread * fade + off * (sample - self._mean)

    @property
    def value(self) -> float | None:
        """The mean; None before the first sample."""
        return self._mean if self._weight else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None while there are fewer than two samples' weight."""
        if not self._weight:
            return None
        samples = self._weight * self._weight / self._weights_squared
        if samples < 1.5:  # noqa: PLR2004  half way from one sample to two
            return None
        return math.sqrt(max(0.0, self._spread) / self._weight / (samples - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a server has measured of itself; None: not known yet."""

    forward_s: float | None = None
    """One forward; of the last stage all that it does with a microbatch."""
    backward_s: float | None = None
    """One backward; None also in the last stage, which has none of its own."""
    error_s: float | None = None
    """The standard error of both together."""
    queue_s: float | None = None
    """How long a microbatch waits for its turn."""
    in_bytes: float | None = None
    """For a microbatch: activations and gradients that come."""
    out_bytes: float | None = None
    link_bytes_per_s: float | None = None
    """What its links carried each way while its stage averaged."""
    free_bytes: int | None = None
    """Memory of its device."""
    state_bytes: int | None = None
    """Weights and optimizer state of its stage."""
    up_bytes_per_s: float | None = None
    """What its links carry of activations to the stage above, while any are on their way."""
    down_bytes_per_s: float | None = None
    """The same, of gradients to the stage below."""

    def seconds(self, *, last: bool) -> float | None:
        """The time that limits it, for a microbatch; None if it is not known."""
        compute_s = self.compute_s(last=last)
        if compute_s is None:
            return None
        return max(compute_s, self._transfer_s(self.in_bytes), self._transfer_s(self.out_bytes))

    def compute_s(self, *, last: bool) -> float | None:
        """The time of computing a microbatch; None if it is not known.

        `last`: it serves the last stage, whose forward, loss and backward are one call.
        """
        backward_s = 0.0 if last else self.backward_s
        if self.forward_s is None or backward_s is None:
            return None
        compute_s = self.forward_s + backward_s
        return compute_s if 0.0 < compute_s < math.inf else None

    def relative_error(self, *, last: bool) -> float | None:
        """The standard error of the time, as a share of it."""
        seconds = self.seconds(last=last)
        return None if seconds is None or self.error_s is None else self.error_s / seconds

    def _transfer_s(self, nbytes: float | None) -> float:
        """Return how long the link is full with so many bytes; 0 where that is not known."""
        if not nbytes or not self.link_bytes_per_s:
            return 0.0
        return nbytes / self.link_bytes_per_s


LINE_TRANSFERS = 32  # the last ones tell what a line carries: some steps' worth
TELLING_BYTES = 16 * 1024  # a smaller transfer tells of delays, not of a line
TELLING_S = 0.01  # but on a line that is known as slow so long a transfer tells of it
TRANSFER_LEAST_S = 1e-4  # what is shorter cannot be told from the jitter of the loop
SLOW_RECEIVER = 4.0  # times the usual time of a byte: it tells of one receiver, not of the line


@dataclass(frozen=True, slots=True)
class Transfer:
    """The bytes of one push, and their times as the sender knows them."""

    peer: bytes
    nbytes: int
    started_s: float
    took_s: float
    """Until the receipt, without queueing and computing: the line and one round trip."""
    grant_s: float
    """From the request of a grant until it came, a round trip at least."""


class LineMeter:
    """What the links to a neighbour stage carry, by the last pushes to it.

    The bytes are divided by the time in which any were on their way. A round trip to the peer, the
    shortest that any of its grants took, does not count: a line far away is not a slow one.
    """

    def __init__(self) -> None:
        self._last: deque[Transfer] = deque(maxlen=LINE_TRANSFERS)

    def on_transfer(self, transfer: Transfer) -> None:
        """A push was received.

        A small one tells of a slow line. Else a line on which a coarser codec makes all pushes
        small would count as slow for ever.
        """
        nbytes = transfer.nbytes
        if nbytes >= TELLING_BYTES or nbytes >= TELLING_S * (self.bytes_per_s or math.inf):
            self._last.append(transfer)

    @property
    def bytes_per_s(self) -> float | None:
        """What the line carries; None before the first push that tells."""
        if not self._last:
            return None
        trips_s: dict[bytes, float] = {}
        for each in self._last:
            trips_s[each.peer] = min(each.grant_s, trips_s.get(each.peer, math.inf))
        spans = [
            (each.started_s, max(each.took_s - trips_s[each.peer], TRANSFER_LEAST_S), each.nbytes)
            for each in self._last
        ]
        usual_s = sorted(took_s / nbytes for _, took_s, nbytes in spans)[len(spans) // 2]
        sent, busy_s, end_s = 0, 0.0, -math.inf
        for started_s, took_s, nbytes in sorted(spans):
            if took_s > SLOW_RECEIVER * usual_s * nbytes:
                continue
            sent += nbytes
            busy_s += max(0.0, started_s + took_s - max(started_s, end_s))
            end_s = max(end_s, started_s + took_s)
        return sent / max(busy_s, TRANSFER_LEAST_S)


class CapacityMeter:
    """Measures one server in one stage."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._forward, self._backward = RecentMean(window_s), RecentMean(window_s)
        self._queue = RecentMean(window_s)
        self._in_bytes = self._out_bytes = 0
        self._microbatches = 0
        self._link_bytes_per_s: float | None = None
        self.up, self.down = LineMeter(), LineMeter()
        """Of its pushes to the stage above and to the one below."""

    def on_compute(self, took_s: float, now_s: float, *, backward: bool) -> None:
        """A microbatch was computed: its forward (in the last stage all of it) or backward."""
        (self._backward if backward else self._forward).add(took_s, now_s)
        self._microbatches += not backward

    def on_wait(self, wait_s: float, now_s: float) -> None:
        """A microbatch had its turn after so long."""
        self._queue.add(wait_s, now_s)

    def on_input(self, nbytes: int) -> None:
        """Bytes of a microbatch have come."""
        self._in_bytes += nbytes

    def on_output(self, nbytes: int) -> None:
        """Bytes of a microbatch have gone."""
        self._out_bytes += nbytes

    def on_averaging(self, bytes_per_s: float) -> None:
        """The links carried so much each way while the stage averaged; 0: too little to tell."""
        if bytes_per_s > 0:
            self._link_bytes_per_s = bytes_per_s

    def measured(
        self, *, free_bytes: int | None = None, state_bytes: int | None = None
    ) -> Measured:
        """All that is known by now."""
        known = [mean.error for mean in (self._forward, self._backward) if mean.value is not None]
        errors = [error for error in known if error is not None]
        sure = bool(known) and len(errors) == len(known)
        count = self._microbatches
        return Measured(
            forward_s=self._forward.value,
            backward_s=self._backward.value,
            error_s=math.hypot(*errors) if sure else None,
            queue_s=self._queue.value,
            in_bytes=self._in_bytes / count if count else None,
            out_bytes=self._out_bytes / count if count else None,
            link_bytes_per_s=self._link_bytes_per_s,
            free_bytes=free_bytes,
            state_bytes=state_bytes,
            up_bytes_per_s=self.up.bytes_per_s,
            down_bytes_per_s=self.down.bytes_per_s,
        )


STAGES_KNOWN_MAX = 8  # of a server: those that it served last
FITS = 8  # rounds of fitting: each brings costs and speeds closer
BELIEF = 0.25  # of a server: how strongly stages are taken to cost what was expected


class StageCosts:
    """What a microbatch costs in each stage relative to others, by servers that served several.

    A server's time in a stage is the stage's cost over the server's speed. Where no server has
    served two stages, they cost what was expected. Times are fitted by their logarithms.
    """

    def __init__(
        self, stages: int, servers_max: int, expected: Sequence[float] | None = None
    ) -> None:
        """`expected`: the costs by the work of the stages' blocks; None: all alike."""
        self._expected = tuple(expected) if expected is not None else (1.0,) * stages
        if len(self._expected) != stages or not all(0 < cost < math.inf for cost in self._expected):
            raise ValueError(f"expected costs {self._expected} of {stages} stages")
        self._servers_max = servers_max
        self._times_s: dict[bytes, dict[int, float]] = {}
        """By server and stage, the newest; the server that moved last is the last."""
        self._last: dict[bytes, tuple[int, float]] = {}
        """The present stage of each server that has never served another, and its time."""

    def on_time(self, server: bytes, stage: int, seconds: float) -> None:
        """A server takes so long for a microbatch in a stage."""
        known = self._times_s.get(server)
        before = self._last.get(server)
        if known is None and before is not None and before[0] != stage:
            known = self._times_s[server] = {before[0]: before[1]}
            if len(self._times_s) > self._servers_max:
                del self._times_s[next(iter(self._times_s))]
        self._last[server] = stage, seconds
        if len(self._last) > self._servers_max:
            del self._last[next(iter(self._last))]
        if known is not None:
            known[stage] = seconds
            if len(known) > STAGES_KNOWN_MAX:
                del known[next(iter(known))]

    def costs(self) -> tuple[float, ...]:
        """The cost of each stage; what was expected where nothing tells otherwise."""
        if not self._times_s:
            return self._expected
        logs = [math.log(cost) for cost in self._expected]
        believed = [BELIEF * log for log in logs]
        for _ in range(FITS):
            sums, counts = believed.copy(), [BELIEF] * len(logs)
            for times_s in self._times_s.values():
                tells = [(stage, math.log(time_s)) for stage, time_s in times_s.items()]
                speed = sum(logs[stage] - log for stage, log in tells) / len(tells)
                for stage, log in tells:
                    sums[stage] += log + speed
                    counts[stage] += 1.0
            logs = [total / count for total, count in zip(sums, counts, strict=True)]
        return tuple(math.exp(log) for log in logs)
