"""A transfer that yields to something stuck on another link is slow, and never starved."""

import asyncio
from contextlib import nullcontext

from p2pswarm.net.bulk.channel_set import BulkChannels, ChannelsUser
from p2pswarm.net.bulk.upload_share import FLOOR_BYTES_PER_S, UploadShare
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.rpc.base import Priority
from p2pswarm.sim.loop import run

SIZE = 8 << 20


class Line:
    """A connection that takes at once whatever its machine has to send, to a peer that says so."""

    def __init__(self, channels):
        self.channels = channels

    def become_bulk(self, machine):
        self.machine = machine
        return self

    def wake(self):
        now_s = asyncio.get_running_loop().time()
        while self.machine.next_out(now_s) is not None:
            self.machine.on_write()
        if self.machine.sent_bytes == SIZE:
            self.channels.on_done(1)

    def close(self):
        """Nothing is open."""


def seconds(priority, stuck):
    async def main():
        upload = UploadShare(nullcontext())
        user = ChannelsUser(print, print, print, print)
        channels = BulkChannels(TransportConfig(), nullcontext, user, upload)
        channels.add(Line(channels), Keys(b"a" * 32, b"b" * 32, Suite.AES_GCM), 0)
        if stuck:
            upload.begin("a gradient for a peer that takes nothing")
        async with asyncio.timeout(600):
            await channels.send(1, memoryview(bytes(SIZE)), priority)
        return asyncio.get_running_loop().time()

    return run(main(), seed=1)


def test_a_peer_that_takes_nothing_starves_no_newcomer_of_another_link():
    slow_s = SIZE / FLOOR_BYTES_PER_S

    assert slow_s / 2 < seconds(Priority.STATE, stuck=True) < 2 * slow_s


def test_without_anything_urgent_it_goes_at_once():
    assert seconds(Priority.STATE, stuck=False) < 1.0


def test_gradients_yield_to_nothing():
    assert seconds(Priority.TENSOR, stuck=True) < 1.0
