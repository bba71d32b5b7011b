"""A version of a stage's state that can still be read while training goes on.

Units:   bytes, seconds on the loop's clock.
Errors:  NotSaved when the version is gone before all of it was read.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from p2pswarm.allreduce.base import Compute
from p2pswarm.checkpoint.saving import on_thread
from p2pswarm.compute.flat_parameters import host_bytes
from p2pswarm.errors import NotSaved
from p2pswarm.flow.signal import Signal
from p2pswarm.server.frozen_pieces import FrozenPieces
from p2pswarm.tensors.codecs.base import Tensor

PIECE_BYTES = 8 << 20  # what is read at a time: a commit waits for one at least
HOLD_S = 20.0  # that a commit may wait; who answers no commit for 60 s is out of the run


class FrozenState:
    """Weights and moments of one version, piece by piece."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        window_bytes: int,
        hold_s: float = HOLD_S,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        """`tensors`: the flat buffers of the state, in the order of a file."""
        self._views = [part for x in tensors for part in _split(x, piece_bytes)]
        self._rules = FrozenPieces([view.nbytes for view in self._views], window_bytes)
        self._hold_s = hold_s
        self._copies: dict[int, memoryview] = {}
        self._gone = ""
        self._changed = Signal()
        self.size = sum(view.nbytes for view in self._views)
        """Of the state, gaps included."""
        self.read_bytes = 0
        """Of it so far."""
        self.held_s = 0.0
        """How long commits have waited."""

    async def pieces(self) -> AsyncGenerator[memoryview]:
        """The state in the order of a file; each piece stays as it is until the next is asked."""
        rules = self._rules
        try:
            while not self._gone:
                if rules.must_wait:
                    await self._changed.wait()
                    continue
                if (number := rules.begin()) is None:
                    return
                view = self._views[number]
                copy = self._copies.pop(number, None)
                yield copy if copy is not None else await _on_host(view)
                rules.end()
                self.read_bytes += view.nbytes
                self._changed.fire()
            raise NotSaved(self._gone)
        finally:
            self.give_up("nobody saves it any more")

    async def before_change(self, compute: Compute) -> None:
        """Make sure that the weights may change: wait, copy what is left, or give the saving up."""
        loop, rules = asyncio.get_running_loop(), self._rules
        begun_s = loop.time()
        try:
            async with asyncio.timeout(self._hold_s):
                while not (self._gone or rules.over or rules.fits):
                    await self._changed.wait()
                if self._gone or rules.over:
                    return
                rules.close()
                while rules.reading and not self._gone:
                    await self._changed.wait()
        except TimeoutError:
            self.give_up(
                f"a step waited {self._hold_s:g} s for the target, which is too slow: raise "
                "serve.checkpoint_mib to what the stage's state takes, or name a faster target"
            )
        else:
            if not self._gone:
                self._copies = await compute(self._copy_left)
                rules.copied()
        finally:
            self.held_s += loop.time() - begun_s
            self._changed.fire()

    def give_up(self, reason: str) -> None:
        """The version cannot be read to its end; no effect when it was."""
        if not self._gone:
            self._gone = reason
            self._changed.fire()

    def _copy_left(self) -> dict[int, memoryview]:
        return {
            number: host_bytes(self._views[number].to("cpu", copy=True))
            for number in self._rules.left
        }


def _split(x: Tensor, piece_bytes: int) -> list[Tensor]:
    step = piece_bytes // x.element_size()
    return [x.detach()[start : start + step] for start in range(0, len(x), step)]


async def _on_host(view: Tensor) -> memoryview:
    """The bytes of a piece: the memory itself, or a copy if it is on a GPU."""
    if view.device.type == "cpu":
        return host_bytes(view)
    return await on_thread(lambda: host_bytes(view))
