"""A standby's watch: its stream to the coordinator, whose end tells that the coordinator is gone.

Units:   seconds on the loop's clock.
Errors:  none; a trainer that cannot be reached is asked again in its turn.
"""

import asyncio
import logging
from collections.abc import Callable

from p2pswarm.base.errors import BadMessage, PathError, SwarmError
from p2pswarm.base.ids import Contact
from p2pswarm.net.rpc.base import Stream
from p2pswarm.run.chain.chain_node import ChainNode
from p2pswarm.run.chain.participant import Seat
from p2pswarm.run.member_cards import learn_all
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.run.messages.run import Finished
from p2pswarm.run.messages.trainers import SILENCE_S, Alive, Enlist, Trainers
from p2pswarm.trainer.coordinator_io.context import TrainerContext
from p2pswarm.trainer.leadership.standby_search import PAUSE_S, StandbySearch
from p2pswarm.trainer.leadership.trainer_roll import TrainerRoll

log = logging.getLogger(__name__)


class Watch:
    """Enlists with the coordinator, whoever that is, until it is stopped."""

    def __init__(
        self,
        context: TrainerContext,
        seats: tuple[Seat, ChainNode],
        roll: TrainerRoll,
        over: Callable[[Finished], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._rpc = context.rpc
        self._run = context.run_id
        self._cards = context.cards
        self._seat, self._node = seats
        self._roll = roll
        self._over = over
        self._tasks = tasks
        self._search = StandbySearch()
        self._task: asyncio.Task[None] | None = None
        self.enlisted = False
        """Whether a coordinator has taken this trainer as a standby, and its stream lasts."""

    def start(self) -> None:
        """Stand by from now on."""
        self.stop()
        self._task = self._tasks.create_task(self._stand_by())

    def stop(self) -> None:
        """This trainer leads, or leaves."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _stand_by(self) -> None:
        while True:
            to = self._search.ask(self._roll.contacts())
            if to is None:
                await asyncio.sleep(PAUSE_S)
                leader, _ = self._seat.led_by
                self._search.hint(self._roll.find(leader) if leader is not None else None)
            elif to.peer != self._rpc.contact.peer:
                await self._enlist(to)

    async def _enlist(self, to: Contact) -> None:
        """Stand by with one trainer, if it coordinates."""
        assert to.peer is not None, "trainers are known by their ids"
        opening = Enlist(self._run, str(self._rpc.contact.address))
        try:
            async with (
                asyncio.timeout(SILENCE_S) as silence,
                self._rpc.open_stream(to, opening, None) as stream,
            ):
                if await self._hear(to, stream, silence):
                    self._node.link_lost(to.peer.raw)
        except TimeoutError:
            log.info("%s is silent", to)
        except PathError as error:
            log.info("%s is gone: %s", to, error)
            self._node.link_lost(to.peer.raw)
        except SwarmError as error:
            log.info("%s does not take a standby: %s", to, error)
        finally:
            self.enlisted = False

    async def _hear(self, to: Contact, stream: Stream, silence: asyncio.Timeout) -> bool:
        """Listen until the stream ends; whether it ended though the run goes on."""
        assert to.peer is not None, "trainers are known by their ids"
        known = False
        while (message := await stream.receive()) is not None:
            silence.reschedule(asyncio.get_running_loop().time() + SILENCE_S)
            learn_all(self._cards, message, to.peer)
            match message:
                case Trainers():
                    self._roll.told(message, asyncio.get_running_loop().time())
                    self._seat.voter.told(one.peer for one in message.trainers)
                    self._search.found()
                    self.enlisted = True
                    if not known:
                        known = True
                        self._node.catch_up(to.peer.raw)
                case Alive():
                    pass
                case StandsBy():
                    self._search.hint(message.contact)
                    return False
                case Finished():
                    self._over(message)
                    return False
                case _:
                    raise BadMessage(f"a {type(message).__name__} for a standby")
        return known
