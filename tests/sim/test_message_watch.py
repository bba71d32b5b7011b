"""A watch of messages in a simulated world, which may stop or end a process at one of them."""

import asyncio
from collections.abc import Callable

import pytest
from sim.seed import SEED

from p2pswarm.base.ids import PeerId
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.membership import StandsBy
from p2pswarm.run.messages.trainers import WhoLeads
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.sim.message_watch import Moment
from p2pswarm.sim.network_conditions import Host
from p2pswarm.sim.process import SimProcess
from p2pswarm.sim.rpc import SimWorld

RUN = bytes(16)
STOPPED_S, WATCHED_S = 7.0, 20.0
LEAVES, ARRIVES = Moment.LEAVES, Moment.ARRIVES


class Pair:
    """Two processes, of which one serves calls and streams, and what it reads."""

    def __init__(self) -> None:
        self.world = SimWorld(SEED)
        self.near, self.far = (self.world.rpc(PeerId(bytes([n]) * 32)) for n in (1, 2))
        self.far.serve_unary(WhoLeads, self._answer)
        self.far.serve_stream(WhoLeads, self._serve)
        self.seen: list[tuple[str, Moment, bool]] = []
        self.read_s: dict[int, float] = {}
        """When it read each number."""
        self.act: Callable[[type[Message], Moment], None] = lambda _message, _moment: None
        self.world.on_message = self._watch

    def _watch(self, message: type[Message], moment: Moment, here: SimProcess, _: Host) -> None:
        self.seen.append((message.__name__, moment, here is self.near))
        self.act(message, moment)

    def _answer(self, _peer: PeerId, _question: WhoLeads) -> StandsBy:
        self.read_s[0] = asyncio.get_running_loop().time()
        return numbered(0)

    async def _serve(self, stream, _opening: WhoLeads) -> None:
        while (message := await stream.receive()) is not None:
            self.read_s[message.term] = asyncio.get_running_loop().time()

    def freeze(self, process) -> None:
        self.world.freeze(process)
        loop = asyncio.get_running_loop()
        loop.call_later(STOPPED_S, self.world.thaw, process, context=WORLD)

    async def ask(self) -> None:
        await self.near.call(self.far.contact, WhoLeads(RUN), STOPPED_S)

    async def send(self) -> None:
        async with self.near.open_stream(self.far.contact, WhoLeads(RUN), None) as stream:
            for number in range(3):
                await stream.send(numbered(number))
                await asyncio.sleep(1.0)

    def play(self, work) -> None:
        """Do `work` in the near process, as far as it comes."""

        async def main() -> None:
            context = self.near.suspension.context.copy()
            task = asyncio.get_running_loop().create_task(work(), context=context)
            await asyncio.sleep(WATCHED_S)
            task.cancel()
            await asyncio.wait((task,))

        run(main(), SEED)


def numbered(number: int) -> StandsBy:
    return StandsBy(b"", "", number)


def test_a_call_and_its_answer_are_seen_when_they_leave_and_when_they_arrive():
    pair = Pair()

    pair.play(pair.ask)

    assert pair.seen == [
        ("WhoLeads", LEAVES, True),
        ("WhoLeads", ARRIVES, False),
        ("StandsBy", LEAVES, False),
        ("StandsBy", ARRIVES, True),
    ]


def test_every_message_of_a_stream_is_seen_and_nothing_that_is_none():
    pair = Pair()

    pair.play(pair.send)

    opening = [("WhoLeads", LEAVES, True), ("WhoLeads", ARRIVES, False)]
    assert sorted(pair.seen, key=str) == sorted(
        [*opening, *[("StandsBy", LEAVES, True), ("StandsBy", ARRIVES, False)] * 3], key=str
    )


@pytest.mark.parametrize("moment", [LEAVES, ARRIVES])
def test_a_process_that_is_stopped_at_a_message_sends_or_reads_it_when_it_goes_on(moment):
    """Those before it are not touched; those after it wait, too, and all come in order."""
    pair = Pair()
    seen = []

    def act(message, when) -> None:
        seen.append((message, when))
        if seen.count((StandsBy, moment)) == 2 and (message, when) == (StandsBy, moment):
            pair.freeze(pair.near if moment is LEAVES else pair.far)

    pair.act = act
    pair.play(pair.send)

    assert list(pair.read_s) == [0, 1, 2]
    assert pair.read_s[0] < STOPPED_S < pair.read_s[1] <= pair.read_s[2]


@pytest.mark.parametrize("moment", [LEAVES, ARRIVES])
@pytest.mark.parametrize("silent", [True, False], ids=["power lost", "killed"])
def test_a_process_that_ends_at_a_message_never_sends_or_reads_it(moment, silent):
    pair = Pair()

    def act(message, when) -> None:
        if (message, when) == (StandsBy, moment):
            victim = pair.near if moment is LEAVES else pair.far
            pair.world.kill(victim.host.peer, silent=silent)

    pair.act = act
    pair.play(pair.send)

    assert pair.read_s == {}


@pytest.mark.parametrize("moment", [LEAVES, ARRIVES])
def test_a_server_that_ends_at_its_answer_has_read_the_question(moment):
    pair = Pair()

    def act(message, when) -> None:
        if (message, when) == (WhoLeads if moment is ARRIVES else StandsBy, moment):
            pair.world.kill(pair.far.host.peer, silent=True)

    pair.act = act
    pair.play(pair.ask)

    assert (0 in pair.read_s) == (moment is LEAVES)
    assert ("StandsBy", ARRIVES, True) not in pair.seen
