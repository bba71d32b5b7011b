"""A trainer, for programs: it starts a run on the user's text and reports its progress.

Units:   seconds and losses as in `progress/events.py`.
Errors:  Unusable for text that cannot be read; NoRoute when no server has the weights any more.
"""

import asyncio
import dataclasses
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from p2pswarm.api.event_queue import EventQueue
from p2pswarm.api.node import Node, leave, load_role
from p2pswarm.api.run import Run
from p2pswarm.config import TrainConfig
from p2pswarm.data.byte_text import Bytes
from p2pswarm.outfile import Written
from p2pswarm.progress.events import Event
from p2pswarm.settings import from_values


class RunTrainer:
    """Trains a run; programs call it `p2pswarm.Trainer`. A node has one trainer.

    Use it in an `async with`; the end of that block tells the servers that the run is over.
    Iterate over it: `async for event in trainer` gives the events of `p2pswarm.events` as they
    happen. The last one is `Ended`. Training goes on whether the events are read or not.

    Args:
        node: A node that is up.
        run: What to train.
        data: The text to train on.

    Raises:
        ValueError: A setting of `data` is not allowed.
        p2pswarm.errors.Unusable: On entering: the text cannot be read, or there is too little.
    """

    def __init__(self, node: Node, run: Run, *, data: Bytes) -> None:
        values = {
            "data": Path(data.path),
            "suffixes": data.suffixes,
            "held_out_share": data.held_out_share,
        }
        self._train = from_values(TrainConfig, values, "train")
        self._node = node
        self._run = run.config
        self._events = EventQueue()
        self._told = asyncio.Event()

    async def __aenter__(self) -> Self:
        stack = self._node.stack
        settings = dataclasses.replace(stack.config, run=self._run, train=self._train)
        self._role = await load_role("trainer")
        corpus = await asyncio.to_thread(self._role.read_corpus, settings)
        stack = dataclasses.replace(stack, config=settings)
        self._block: AbstractAsyncContextManager[Any, bool | None] = self._role.open_trainer(
            stack, corpus, self._tell
        )
        self._trainer = await self._block.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await leave(self._block, kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while (event := self._events.take()) is None:
            if self._events.finished:
                raise StopAsyncIteration
            self._told.clear()
            await self._told.wait()
        return event

    async def save(self, path: str | Path) -> Path:
        """Fetch the weights from the servers and write them as one safetensors file.

        The tensors are named `blocks.NUMBER.PARAMETER`. Call it after `Ended`, inside the block.

        Returns:
            The path of the file: `path`, or one beside it if `path` could not be written or is
            there already. Nothing is overwritten.

        Raises:
            p2pswarm.errors.NoRoute: A stage has no server left that holds its weights.
            p2pswarm.errors.Unusable: The file cannot be written.
        """
        written: Written = await self._role.save(self._trainer, self._run, Path(path))
        return written.path

    def _tell(self, event: Event) -> None:
        self._events.put(event)
        self._told.set()
