"""Arrangements for tests: drawn by hypothesis, and changed by a decision as a run would change."""

from dataclasses import replace

from hypothesis import strategies as st

from p2pswarm.plan.arrangement import Arrangement, StagedServer
from p2pswarm.plan.moves import Decision
from p2pswarm.settings.config import BalanceConfig

AT_ONCE = BalanceConfig(steady_s=0.0)
PRICED = BalanceConfig()


def server(number: int, stage: int, speed: float | None = 1.0, **changes) -> StagedServer:
    error = None if speed is None else 0.0
    fields = {"server": bytes([number // 256, number % 256]), "speed": speed, "error": error}
    return StagedServer(stage=stage, **(fields | changes))


def arranged(*speeds: tuple[float, ...], **changes) -> Arrangement:
    """Stages with servers of these speeds."""
    servers, number = [], 0
    for stage, of_stage in enumerate(speeds):
        for speed in of_stage:
            servers.append(server(number, stage, speed))
            number += 1
    return Arrangement(stages=len(speeds), servers=tuple(servers), **changes)


@st.composite
def arrangements(draw) -> Arrangement:
    """Anything that a coordinator may see."""
    stages = draw(st.integers(1, 5))
    count = draw(st.integers(1, 20))
    servers = tuple(
        StagedServer(
            server=bytes([number]),
            stage=draw(st.integers(0, stages - 1)),
            speed=draw(st.none() | st.floats(0.01, 100.0)),
            error=draw(st.none() | st.floats(0.0, 0.1)),
            ready=draw(st.integers(0, 9)) > 0,
            bound=draw(st.sampled_from(["", "", "", "was told which stage to serve"])),
            link_bytes_per_s=draw(st.none() | st.floats(0.0, 1e15)),
            free_bytes=draw(st.none() | st.integers(0, 10**10)),
            queued=draw(st.integers(0, 30)),
        )
        for number in range(count)
    )
    return Arrangement(
        stages=stages,
        servers=servers,
        costs=tuple(draw(st.floats(0.2, 5.0)) for _ in range(stages)),
        state_bytes=tuple(
            draw(st.none() | st.integers(0, 10**9) | st.just(2**62)) for _ in range(stages)
        ),
        deaths_per_s=draw(st.floats(1e-7, 1e-2)),
        moving=draw(st.integers(0, 2)),
    )


def moved(arrangement: Arrangement, decision: Decision, **changes) -> Arrangement:
    """The arrangement when all that were sent are where they were sent to, and ready."""
    targets = {move.server: move.target for move in decision.moves}
    servers = tuple(
        replace(one, stage=targets.get(one.server, one.stage)) for one in arrangement.servers
    )
    return rearranged(arrangement, servers, **changes)


def rearranged(
    arrangement: Arrangement, servers: tuple[StagedServer, ...], **changes
) -> Arrangement:
    """The same run with other servers."""
    fields = {
        "stages": arrangement.stages,
        "costs": arrangement.costs,
        "state_bytes": arrangement.state_bytes,
        "deaths_per_s": arrangement.deaths_per_s,
    }
    return Arrangement(servers=servers, **(fields | changes))
