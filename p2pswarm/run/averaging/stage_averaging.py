"""All that one order to reduce asks of a member: one averaging, or two at an end of a tied model.

Errors:  as `averaging_io.py`; BadMessage for an order that does not fit the model.
"""

import asyncio
from dataclasses import replace

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.exception_group import raising_cause
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings, Find
from p2pswarm.run.averaging.base import AveragedGradient, Compute, Sums
from p2pswarm.run.averaging.delivery import BothWays
from p2pswarm.run.averaging.tying import joined, tied_order
from p2pswarm.run.messages.averaging import Shard
from p2pswarm.run.messages.step import Reduce
from p2pswarm.tensors.transfer import TensorTransfer


class StageAveraging:
    """Takes part in the averagings of one order at a time; a newer order ends the older."""

    def __init__(
        self,
        rpc: Rpc,
        tensors: TensorTransfer,
        compute: Compute,
        find: Find,
        tasks: asyncio.TaskGroup,
        settings: AveragingSettings | None = None,
    ) -> None:
        """As `Averaging`."""
        given = rpc, tensors, compute, find, tasks
        settings = settings or AveragingSettings()
        self._rest = Averaging(*given, settings)
        self._tied = Averaging(*given, replace(settings, tied=True))

    def members_changed(self) -> None:
        """A new view is here."""
        self._rest.members_changed()
        self._tied.members_changed()

    async def average(self, order: Reduce, sums: Sums) -> AveragedGradient:
        """Do what the trainer ordered; `sums` then holds the reduced gradient."""
        parts = sums.apart()
        if (parts is None) != (order.tied is None):
            raise BadMessage(f"an order of step {order.step} for a model that is tied otherwise")
        if parts is None or order.tied is None:
            return await self._rest.average(order, sums)
        (rest, tied), links = parts, BothWays()
        with raising_cause():
            async with asyncio.TaskGroup() as tasks:
                ours = tasks.create_task(self._rest.average(order, rest, links))
                both = tasks.create_task(
                    self._tied.average(tied_order(order, order.tied), tied, links)
                )
        return joined(ours.result(), both.result(), links.bytes_per_s)

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive one piece."""
        await (self._tied if shard.tied else self._rest).shard(stream, shard)
