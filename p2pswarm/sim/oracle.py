"""How fast a fleet could be if every server stood where it helps most, and moving cost nothing.

A stage's rate is the speed of its servers over its share of a microbatch's work; the slowest stage
is the run's. `bound` is what no arrangement is above. `best_arrangement` is a good one: it is exact
where all servers are alike, and close where they are not.

Units:   speeds relative to any machine; rates in the same unit, for a stage of share 1.
Errors:  none.
Source:  Graham, "Bounds on Multiprocessing Timing Anomalies" (1969), for the longest first.
"""

from collections.abc import Callable, Sequence

EXCHANGES_MAX = 10_000  # far more than are ever made: a limit in place of a proof
GAIN_MIN = 1e-12  # relative: less is rounding


def bound(speeds: Sequence[float], shares: Sequence[float]) -> float:
    """The rate if servers could be divided; 0 if there are fewer of them than stages."""
    return sum(speeds) / sum(shares) if len(speeds) >= len(shares) else 0.0


def best_rate(speeds: Sequence[float], shares: Sequence[float]) -> float:
    """The rate of the best arrangement that is found; 0 if a stage has to stay empty."""
    if len(speeds) < len(shares):
        return 0.0
    return min(_rates(best_arrangement(speeds, shares), speeds, shares))


def best_arrangement(speeds: Sequence[float], shares: Sequence[float]) -> list[int]:
    """The stage of each server: the better of two ways to begin, each followed by exchanges."""
    whole = sum(speeds) / sum(shares)
    found = [
        _arranged(speeds, shares, lambda speed, share: speed / share),
        _arranged(speeds, shares, lambda speed, share: speed - whole * share),
    ]
    return max(found, key=lambda stages: min(_rates(stages, speeds, shares)))


def _arranged(
    speeds: Sequence[float], shares: Sequence[float], served: Callable[[float, float], float]
) -> list[int]:
    """The fastest first, each where it is needed most; `served`: how well a stage is served."""
    stages = [0] * len(speeds)
    sums = [0.0] * len(shares)
    for server in sorted(range(len(speeds)), key=lambda one: (-speeds[one], one)):
        stage = min(
            range(len(shares)), key=lambda one: (served(sums[one], shares[one]), -shares[one], one)
        )
        stages[server] = stage
        sums[stage] += speeds[server]
    for _ in range(EXCHANGES_MAX):
        if not _exchange(stages, sums, speeds, shares):
            break
    return stages


def _exchange(
    stages: list[int], sums: list[float], speeds: Sequence[float], shares: Sequence[float]
) -> bool:
    """Give the slowest stage a server, or a faster one for one of its own; False if none helps."""
    weak = min(range(len(shares)), key=lambda one: (sums[one] / shares[one], one))
    best, found = sums[weak] / shares[weak], None
    ours = [server for server, stage in enumerate(stages) if stage == weak]
    for server, stage in enumerate(stages):
        for back in [None, *ours] if stage != weak else ():
            moved = speeds[server] - (speeds[back] if back is not None else 0.0)
            after = min((sums[weak] + moved) / shares[weak], (sums[stage] - moved) / shares[stage])
            if after > best * (1 + GAIN_MIN):
                best, found = after, (server, back, moved)
    if found is None:
        return False
    server, back, moved = found
    other = stages[server]
    sums[weak] += moved
    sums[other] -= moved
    stages[server] = weak
    if back is not None:
        stages[back] = other
    return True


def _rates(stages: Sequence[int], speeds: Sequence[float], shares: Sequence[float]) -> list[float]:
    sums = [0.0] * len(shares)
    for stage, speed in zip(stages, speeds, strict=True):
        sums[stage] += speed
    return [total / share for total, share in zip(sums, shares, strict=True)]
