"""Members of one stage in virtual time, each with a sum of its own."""

import asyncio

import torch

from p2pswarm.base.ids import PeerId
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings
from p2pswarm.run.messages.step import Reduce, Shard
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer

RUN = b"r" * 16
LENGTH = 5_000


async def compute_here(work):
    return work()


def peer(number):
    return PeerId(number.to_bytes(32))


class Circle:
    """Members with a sum each, and newcomers that only watch."""

    def __init__(
        self,
        tasks,
        members,
        observers=0,
        codec="raw",
        budget=None,
        length=LENGTH,
        settings=None,
        kinds=(),
    ):
        """`kinds`: the classes of the first members' averagings, if not the usual one."""
        self.world = SimWorld(1)
        self.peers = [peer(n + 1) for n in range(members + observers)]
        self.group = tuple(p.raw for p in self.peers[:members])
        self.observers = tuple(p.raw for p in self.peers[members:])
        self.rpcs = [self.world.rpc(p) for p in self.peers]
        self.contacts = {r.contact.peer.raw: r.contact for r in self.rpcs}
        self.codec = codec
        generator = torch.Generator().manual_seed(3)
        self.values = [torch.randn(length, generator=generator) for _ in self.peers]
        usual = [Averaging] * (members + observers - len(kinds))
        self.averagings = [
            kind(
                rpc,
                TensorTransfer(budget or Budget()),
                compute_here,
                self.contacts.get,
                tasks,
                settings or AveragingSettings(),
            )
            for rpc, kind in zip(self.rpcs, [*kinds, *usual], strict=True)
        ]
        for rpc, each in zip(self.rpcs, self.averagings, strict=True):
            rpc.serve_stream(Shard, each.shard)

    def order(self, generation=1, step=0, without=(), shares=()):
        group = tuple(p for n, p in enumerate(self.group) if n not in without)
        return Reduce(RUN, step, generation, 1, b"", group, self.observers, shares)

    def begin(self, order, who):
        """Tell members to average, and do not wait; returns their tasks."""
        sums = [TorchSums(self.values[n], self.codec) for n in who]
        return [
            asyncio.ensure_future(self.averagings[n].average(order, s))
            for n, s in zip(who, sums, strict=True)
        ]

    def total(self, without=()):
        """The sum in the group's order."""
        first, *rest = (v for n, v in enumerate(self.values) if n not in without)
        total = first.clone()
        for value in rest:
            total += value
        return total

    def links(self, bytes_per_s, *who):
        """Give members' links a rate, both ways."""
        for n in who or range(len(self.peers)):
            host = self.world.world.hosts[self.peers[n].raw]
            host.up_bytes_per_s = host.down_bytes_per_s = bytes_per_s

    async def average(self, order, who=None):
        sums = [TorchSums(v, self.codec) for v in self.values]
        who = range(len(self.peers)) if who is None else who
        async with asyncio.TaskGroup() as tasks:
            going = [tasks.create_task(self.averagings[n].average(order, sums[n])) for n in who]
        return [sums[n].reduced_N for n in who], [task.result() for task in going]
