"""What a trainer, a server and who watches from afar tell alike: a first event, servers, names."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from p2pswarm.base.version import VERSION
from p2pswarm.progress.events import Begun, PeerLine
from p2pswarm.run.messages.balance import Capacity
from p2pswarm.run.messages.membership import Load
from p2pswarm.run.messages.status import PeerName
from p2pswarm.settings.config import RunConfig

MEASURED = [field.name for field in dataclasses.fields(Capacity) if hasattr(PeerLine, field.name)]
"""What a server measures of itself, by the names of both."""


def begun(
    run: RunConfig,
    role: str,
    name: str,
    cut: tuple[int, ...] = (),
    parameters: int = 0,
    done: int = 0,
) -> Begun:
    """The first event of a process that takes part in a run; `cut`: blocks of each stage."""
    codecs, batch = run.codecs, run.batch
    return Begun(
        run.name,
        role,
        name,
        VERSION,
        run.steps,
        run.stages,
        cut,
        batch.microbatches,
        batch.rows,
        run.model.sequence_length,
        parameters,
        run.model.family,
        run.optimizer.name,
        (codecs.activation, codecs.gradient, "+".join(codecs.averagings)),
        done,
    )


def line_of(
    server: str, stage: int, load: Load, *, ready: bool = True, counted: int = 0
) -> PeerLine:
    """One server with what it has just told of itself."""
    return PeerLine(
        server,
        stage,
        ready,
        load.queued,
        rounded(load.rate_per_s),
        counted=counted,
        recomputed=load.recomputed,
        unheard_s=rounded(load.unheard_s),
        weights_share=rounded(load.weights_share),
        **dataclasses.asdict(load.links),
        **{name: rounded(getattr(load.capacity, name)) for name in MEASURED},
    )


def rounded(value: Any) -> Any:
    """A figure with the digits that anybody reads."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def names_of(peers: Iterable[bytes], name: Callable[[bytes], str]) -> tuple[PeerName, ...]:
    """The names of those machines that have one."""
    return tuple(PeerName(peer, name(peer)) for peer in dict.fromkeys(peers) if name(peer))
