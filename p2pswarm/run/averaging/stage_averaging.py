"""All that one order to reduce asks of a member: one averaging, or two at an end of a tied model.

Errors:  as `averaging_io.py`; BadMessage for an order that does not fit the model.
Source:  docs/tied_weights.md.
"""

import asyncio
import hashlib
from dataclasses import replace

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.base.exception_group import raising_cause
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings, Find
from p2pswarm.run.averaging.base import AveragedGradient, Compute, Sums
from p2pswarm.run.averaging.piece_delivery import LinkBandwidth
from p2pswarm.run.averaging.round import MissingPieces, RoundId
from p2pswarm.run.messages.step import Reduce, Shard, TiedGroup
from p2pswarm.tensors.transfer import TensorTransfer

DIGEST_BYTES = 32


class StageAveraging:
    """Takes part in the averagings of one order at a time; a newer order ends the older.

    At such an end, one order makes two averagings: of all but the tied tensor, with its own stage;
    and of that tensor, with the members of both stages. The sums of the first stage hold the
    gradient of the embedding, those of the last that of the head, of the same microbatches. Each
    is in the group once, so what all get is the gradient of the tensor.

    Sums in low rank take two rounds, the second of what the first has given (docs/codecs.md). Both
    belong to one order: if a member is lost in either, the next order begins with the first.
    """

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
        self._second = Averaging(*given, replace(settings, second=True))
        self._newest = RoundId(-1, 0)

    def members_changed(self) -> None:
        """A new view is here."""
        self._rest.members_changed()
        self._tied.members_changed()
        self._second.members_changed()

    def lacks(self) -> MissingPieces:
        """Return of which members something has not come, in the averagings under way."""
        return self._rest.lacks() + self._tied.lacks() + self._second.lacks()

    async def average(self, order: Reduce, sums: Sums) -> AveragedGradient:
        """Do what the trainer ordered; `sums` then holds the reduced gradient."""
        parts = sums.apart()
        if (parts is None) != (order.tied is None):
            raise BadMessage(f"an order of step {order.step} for a model that is tied otherwise")
        turn = RoundId(order.step, order.generation)
        self._newest = max(self._newest, turn)
        self._second.end_before(turn)
        if parts is None or order.tied is None:
            return await self._within_stage(order, sums, LinkBandwidth())
        (rest, tied), links = parts, LinkBandwidth()
        with raising_cause():
            async with asyncio.TaskGroup() as tasks:
                ours = tasks.create_task(self._within_stage(order, rest, links))
                both = tasks.create_task(
                    self._tied.average(tied_order(order, order.tied), tied, links)
                )
        return joined(ours.result(), both.result(), links.bytes_per_s)

    async def shard(self, stream: Stream, shard: Shard) -> None:
        """Receive one piece."""
        beside = self._second if shard.second else self._rest
        await (self._tied if shard.tied else beside).shard(stream, shard)

    async def _within_stage(
        self, order: Reduce, sums: Sums, links: LinkBandwidth
    ) -> AveragedGradient:
        """Average with the members of the stage, in one round or in two."""
        if (rounds := sums.rounds()) is None:
            return await self._rest.average(order, sums, links)
        first = await self._rest.average(order, rounds.first, links)
        turn = RoundId(order.step, order.generation)
        if turn < self._newest:
            raise NotServing(f"a newer averaging took the place of {turn}")
        return followed(first, await self._second.average(order, rounds.second(), links))


def tied_order(order: Reduce, tied: TiedGroup) -> Reduce:
    """The order of the second averaging."""
    return replace(
        order,
        group=tied.group,
        observers=tied.observers,
        shares=tied.shares,
        prompt=0,  # nobody prepares for an end beside another stage
        tied=None,
    )


def followed(first: AveragedGradient, second: AveragedGradient) -> AveragedGradient:
    """Return what two rounds gave: the gradient is the second's, and both have to agree."""
    digest = hashlib.blake2b(first.digest + second.digest, digest_size=DIGEST_BYTES).digest()
    return replace(second, digest=digest)


def joined(
    rest: AveragedGradient, tied: AveragedGradient, bytes_per_s: float = 0.0
) -> AveragedGradient:
    """Return what both averagings gave, as one; `bytes_per_s`: what the links carried for both."""
    digest = hashlib.blake2b(rest.digest + tied.digest, digest_size=DIGEST_BYTES).digest()
    return AveragedGradient(digest, rest.squared_norm, bytes_per_s, tied)
