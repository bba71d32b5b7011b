"""A push in virtual time: it waits for events and deadlines, and for nothing else."""

import asyncio
import random

from p2pswarm.base.errors import Busy, LinkLost
from p2pswarm.base.signal import Signal
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.microbatch import Receipt
from p2pswarm.run.push import SEARCH_S
from p2pswarm.run.push_io import push_to_any
from p2pswarm.run.router import Router
from p2pswarm.sim.loop import run

FIRST, SECOND = (
    MemberRecord(bytes([name]) * 32, f"10.0.0.{name}:1", 0, 1, ready=True) for name in (1, 2)
)


class Servers:
    """What the servers of a stage say, one answer after another; None: it is computed."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.router = Router(random.Random(1))
        self.view_changed = Signal()

    async def push_once(self, member, progress):
        now_s = asyncio.get_running_loop().time()
        self.asked.append((member, now_s))
        if (answer := self.answers.pop(0)) is not None:
            raise answer
        progress.granted(now_s)
        progress.sent(now_s)
        progress.computed(now_s, Receipt(0.0, 0.0))

    async def push(self):
        return await push_to_any(self.router, "nobody", self.view_changed, self.push_once)

    def view(self, *members):
        self.router.update(members)
        self.view_changed.fire()


def test_a_push_goes_the_moment_a_view_names_a_server():
    async def main():
        servers = Servers(None)
        pushing = asyncio.ensure_future(servers.push())
        await asyncio.sleep(7.0)
        servers.view(FIRST)
        assert await pushing is None
        return servers.asked

    assert run(main(), seed=1) == [(FIRST, 7.0)]


def test_a_push_goes_the_moment_a_busy_server_is_free():
    async def main():
        servers = Servers(Busy("full", 3.0), None)
        servers.view(FIRST)
        assert await servers.push() is None
        return servers.asked

    assert run(main(), seed=1) == [(FIRST, 0.0), (FIRST, 3.0)]


def test_a_push_that_nobody_takes_ends_at_its_deadline():
    async def main():
        reason = await Servers().push()
        return reason, asyncio.get_running_loop().time()

    assert run(main(), seed=1) == ("nobody", SEARCH_S)


def test_a_push_whose_link_was_lost_is_not_tried_elsewhere():
    async def main():
        servers = Servers(LinkLost("gone"), None)
        servers.view(FIRST, SECOND)
        return await servers.push(), len(servers.asked)

    assert run(main(), seed=1) == ("gone", 1)
