"""Downloads the state of every stage to the trainer; the steps stand still meanwhile.

Units:   seconds.
Errors:  NoRoute where nobody has a stage's weights; TimeoutError where they do not come.
"""

import asyncio
from collections.abc import Sequence

from p2pswarm.base.errors import NoRoute
from p2pswarm.base.ids import Contact
from p2pswarm.run.messages.state import FetchPieces
from p2pswarm.run.state.download import Download
from p2pswarm.run.state.host_state import HostState, StateSize
from p2pswarm.run.state.snapshot import Snapshot
from p2pswarm.run.view import contact
from p2pswarm.trainer.coordinator_io.context import TrainerContext
from p2pswarm.trainer.coordinator_io.coordination import Coordination

WEIGHTS_S = 3600.0  # to download the state of one stage


async def download_weights(
    context: TrainerContext, coordination: Coordination, sizes: Sequence[StateSize]
) -> list[Snapshot]:
    """The state of every stage, all of one version: no step is reduced before they are here."""
    admission = coordination.coordinator.admission
    admission.still += 1
    try:
        async with asyncio.timeout(WEIGHTS_S * len(sizes)):
            return [
                await _state(context, coordination, stage, size) for stage, size in enumerate(sizes)
            ]
    finally:
        admission.still -= 1
        coordination.pump()


async def _state(
    context: TrainerContext, coordination: Coordination, stage: int, size: StateSize
) -> Snapshot:
    coordinator, moved = coordination.coordinator, coordination.moved

    def servers() -> tuple[Contact, ...]:
        members = coordinator.members.ready(stage)
        if not members:
            raise NoRoute(f"stage {stage} has no server left that holds its weights")
        return tuple(contact(m.record) for m in members)

    while (digest := coordinator.admission.agreed(stage, step := coordinator.step)) is None:
        servers()
        await moved.wait()
    state = HostState(size, step, digest, moved)
    download = Download(context.rpc, FetchPieces(context.run_id, stage), state)

    def donors() -> tuple[Contact, ...]:
        usable = tuple(one for one in servers() if state.usable(one))
        if not usable:
            raise NoRoute(f"all servers of stage {stage} gave weights that are not the stage's")
        return usable

    await download.run(donors, lambda: state.enough)
    return state.snapshot()
