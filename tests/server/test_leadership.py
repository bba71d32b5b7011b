"""A server's search for a trainer, as those see it who look the run up for it."""

import asyncio
from dataclasses import dataclass, field

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.run.messages.membership import Assigned
from p2pswarm.server.leadership import Seeker
from p2pswarm.sim.loop import run

OLD, NEW = (
    Contact(PeerId(byte * 32), Address("10.0.0.1", 4000 + place))
    for place, byte in enumerate((b"o", b"n"))
)


@dataclass
class Ear:
    """What a server hears of its coordinator."""

    silent: bool = False
    asked: list[Contact] = field(default_factory=list)

    def ask(self, trainers) -> None:
        self.asked += trainers


@dataclass
class Place:
    """Of a server's context, what its search needs."""

    trainer: Contact = OLD
    standbys: tuple[Contact, ...] = ()
    rejoin_s: float = 60.0


def in_session(story) -> None:
    """Tell a story of a server that has a session with its trainer."""

    async def main() -> None:
        ear, changed = Ear(), Signal()
        seeker = Seeker(Place(), ear, changed, changed.fire)
        lifecycle = seeker.begin()
        lifecycle.joining(0.0)
        lifecycle.answered(Assigned(0, 1, 0, keep=False))
        await story(seeker, ear, changed)

    run(main(), 1)


def test_the_run_is_not_looked_up_while_the_coordinator_speaks():
    async def story(seeker, ear, changed):
        seeking = asyncio.ensure_future(seeker.seeking())
        changed.fire()
        await asyncio.sleep(60.0)

        assert not seeker.seeks
        assert not seeking.done()
        seeker.found([NEW])
        assert ear.asked == []
        seeking.cancel()

    in_session(story)


def test_the_run_is_looked_up_while_the_coordinator_is_silent_and_who_is_found_is_asked_who_leads():
    async def story(seeker, ear, changed):
        seeking = asyncio.ensure_future(seeker.seeking())
        await asyncio.sleep(1.0)
        ear.silent = True
        changed.fire()

        assert await seeking <= 2.0
        assert seeker.seeks
        seeker.found([NEW])
        assert ear.asked == [NEW]
        assert not seeker.lifecycle.seeking, "its session goes on until somebody says who leads"

    in_session(story)
