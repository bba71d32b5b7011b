"""A trainer, for programs: it starts a run on the user's text and reports its progress."""

import asyncio
import dataclasses
import logging
from collections import deque
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from p2pswarm.api.node import Node, leave, load_role
from p2pswarm.api.run import Run
from p2pswarm.base.files import Written
from p2pswarm.commands.owner.invitations import check_asked, invite
from p2pswarm.data.text_settings import TrainedText, settings_of
from p2pswarm.node.progress.event_hub import numbers_of
from p2pswarm.node.roles import role_module
from p2pswarm.progress.event_lines import EventLine, EventNumbers
from p2pswarm.progress.events import Ended, Event
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import from_values
from p2pswarm.settings.train_config import TrainConfig

DAY_S = 86_400
WAITING_MAX = 10_000  # events of some minutes of a fast run; a few MiB

log = logging.getLogger(__name__)


class RunTrainer:
    """Trains a run; programs call it `p2pswarm.Trainer`. A node has one trainer.

    Use it in an `async with`; the end of that block tells the servers that the run is over.
    Iterate over it: `async for event in trainer` gives the events of `p2pswarm.events` as they
    happen. The last one is `Ended`. Training goes on whether the events are read or not.

    Args:
        node: A node that is up.
        run: What to train.
        data: The text to train on.
        closed: Only who is invited takes part (`invite`); the owner's key is kept in the node's
            `state`. A run that is there already goes on as it is.
        standby: Found no run: stand by for one of the same settings and text that another trainer
            has founded, and lead it when needed. The node has an invitation, unless strangers lead.
        price_per_hour: What this machine costs; servers tell their own prices.
        currency: Of all sums of the run, in three letters.
        budget: What the run may cost; 0: no limit. Once that is spent, the event `BudgetReached`
            comes with `over`: save what is to stay, and call `end`, or go on.

    Raises:
        ValueError: A setting of `data` is not allowed, or a node without `state` is to found a
            closed run.
        p2pswarm.base.errors.Unusable: On entering: the text cannot be read, or there is too little.
    """

    def __init__(
        self,
        node: Node,
        run: Run,
        *,
        data: TrainedText,
        closed: bool = False,
        standby: bool = False,
        price_per_hour: float = 0.0,
        currency: str = "USD",
        budget: float = 0.0,
    ) -> None:
        values = settings_of(data) | {
            "closed": closed,
            "standby": standby,
            "price_per_hour": price_per_hour,
            "currency": currency,
            "budget": budget,
        }
        self._train = from_values(TrainConfig, values, "train")
        if closed and not standby and not node.keeps_state:
            raise ValueError("a closed run needs a folder for its owner's key: Node(state=FOLDER)")
        self._node = node
        self._run = run.config
        self._events: deque[Event] = deque(maxlen=WAITING_MAX)
        """Events that are not read yet; the oldest is dropped if there are too many."""
        self._finished = False
        """True if `Ended` was read; then no more events come."""
        self._told = asyncio.Event()
        self._done = False
        self._ends_early = False
        """`end` was called: `state` goes on with the run next time."""
        self._prepared: Any = None
        """Result of the role's `prepare`; None: not yet."""

    async def __aenter__(self) -> Self:
        stack = self._node.stack
        self._role = await load_role("trainer")
        prepared = self._prepared
        own = dataclasses.replace(stack.config, role="trainer", run=self._run, train=self._train)
        if prepared is None:
            prepared = await asyncio.to_thread(self._role.prepare, own, stack.identity, log.info)
        self._prepared, corpus = prepared, prepared.corpus
        self._settings = settings = dataclasses.replace(own, run=prepared.config.run)
        stack = dataclasses.replace(stack, config=settings)
        self._entry = await self._role.enter_run(stack, prepared.text, log.info)
        self._run = self._entry.identity.config  # it may be closed by another
        hub = self._role.event_hub(stack, self._entry)
        hub.listen(self._keep)
        stack = dataclasses.replace(stack, config=dataclasses.replace(settings, run=self._run))
        self._block: AbstractAsyncContextManager[Any, bool | None] = self._role.open_trainer(
            stack, corpus, hub.tell, self._entry
        )
        self._trainer = await self._block.__aenter__()
        self._role.show_trainer(stack, self._run.name, self._trainer)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._done and not self._ends_early:
            await asyncio.to_thread(self._entry.finished)  # `state` begins another run next time
        await leave(self._block, kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._finished:
                raise StopAsyncIteration
            self._told.clear()
            await self._told.wait()
        event = self._events.popleft()
        self._finished = isinstance(event, Ended)
        return event

    async def invite(
        self,
        name: str = "",
        *,
        for_s: int = 7 * DAY_S,
        role: str = "serve",
        uses: int = 0,
        peer: str = "",
    ) -> str:
        """Sign an invitation to this run, which a node with `state` has founded; inside the block.

        Args:
            name: Under which `p2pswarm revoke` and `renew` find it; empty: any that is free.
            for_s: For how many seconds it holds.
            role: `serve`, `train`, or `watch`.
            uses: How many peers each member lets use it; 0: as many as want to.
            peer: The peer id that it is for; empty: whoever has the text, so keep it secret.

        Returns:
            One line of text, for `Node(invite=...)` or `p2pswarm node --invite`.

        Raises:
            ValueError: There is no such role, or `for_s` or `uses` is out of its limits.
            p2pswarm.base.errors.Unusable: The run has no owner, or its owner's key is not here.
        """
        check_asked(role, uses)
        return await asyncio.to_thread(
            invite, self._settings, name=name, role=role, uses=uses, peer=peer, lasts_s=for_s
        )

    async def save(self, path: str | Path) -> Path:
        """Fetch the weights from the servers and write them as one safetensors file.

        The tensors are named `blocks.NUMBER.PARAMETER`, those of a model of transformers as there.
        Call it after `Ended`, inside the block. Its tokenizer and chat template lie beside it.

        Returns:
            The path of the file: `path`, or one beside it if `path` could not be written or is
            there already. Nothing is overwritten.

        Raises:
            p2pswarm.base.errors.NoRoute: A stage has no server left that holds its weights.
            p2pswarm.base.errors.Unusable: The file cannot be written.
        """
        written: Written = await self._role.save(
            self._trainer, self._run, Path(path), self._prepared
        )
        return written.path

    def end(self, reason: str) -> None:
        """End the run before its last step, if this trainer leads it: servers are told `reason`.

        `Ended` comes then. Call `save` before. A node with `state` goes on with the run next time.
        """
        self._ends_early = self._trainer.leads and not self._done
        self._trainer.end(reason)

    @property
    def numbers(self) -> EventNumbers:
        """Return what numbers the events of this trainer, for lines of JSON."""
        return numbers_of(self._entry.identity.run, self._node.stack.identity.peer_id)

    def _keep(self, told: EventLine) -> None:
        event = told.event
        self._done = self._done or (isinstance(event, Ended) and not event.failed)
        self._events.append(event)
        self._told.set()


class PreparedTrainer(RunTrainer):
    """A trainer whose model and text were read before its node was up."""

    def __init__(self, node: Node, run: Run, data: TrainedText, prepared: object) -> None:
        """`prepared`: as `prepared_run` gave it for the same run and text."""
        super().__init__(node, run, data=data)
        self._prepared = prepared


def prepared_run(run: Run, data: TrainedText) -> object:
    """The model and the text, read and checked without a node; Unusable says what is wrong."""
    train = from_values(TrainConfig, settings_of(data), "train")
    config = NodeConfig(role="trainer", run=run.config, train=train)
    return role_module("trainer").prepare_run(config, "", log.info)
