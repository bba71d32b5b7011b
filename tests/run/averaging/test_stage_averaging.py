"""Both ends of a tied model in virtual time: one tensor over two stages, beside all else."""

import asyncio

import pytest
import torch
from run.averaging.harness import RUN, compute_here, peer

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.averaging_io import AveragingSettings
from p2pswarm.run.averaging.shards import Span
from p2pswarm.run.averaging.stage_averaging import StageAveraging
from p2pswarm.run.messages.step import Reduce, Shard, TiedGroup
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimWorld
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer

FIRST, LAST = Span(0, 3_000), Span(1_700, 4_700)  # where the tensor lies in each stage
LENGTHS = 5_000, 4_710
STAGE_OF = (0, 0, 0, 1, 1)
WATCHER = 5


class Ends:
    """Three members of the first stage, two of the last, and one that observes the last."""

    def __init__(self, tasks, codec="raw"):
        self.codec = codec
        self.world = SimWorld(1)
        self.peers = [peer(number + 1) for number in range(6)]
        rpcs = [self.world.rpc(each) for each in self.peers]
        contacts = {rpc.contact.peer.raw: rpc.contact for rpc in rpcs}
        generator = torch.Generator().manual_seed(3)
        self.values = [torch.randn(LENGTHS[stage], generator=generator) for stage in (*STAGE_OF, 1)]
        self.averagings = [
            StageAveraging(
                *(rpc, TensorTransfer(Budget()), compute_here, contacts.get, tasks),
                AveragingSettings(piece=700, secret=rpc.contact.peer.raw),
            )
            for rpc in rpcs
        ]
        for rpc, each in zip(rpcs, self.averagings, strict=True):
            rpc.serve_stream(Shard, each.shard)

    def order(self, who, *, tied=True, generation=1):
        stage = 1 if who == WATCHER else STAGE_OF[who]
        raws = [each.raw for each in self.peers]
        group = tuple(raw for raw, of in zip(raws, STAGE_OF, strict=False) if of == stage)
        observers = (raws[WATCHER],)
        both = TiedGroup(tuple(raws[:WATCHER]), observers) if tied else None
        watching = observers if stage else ()
        return Reduce(RUN, 0, generation, 1, b"", group, watching, tied=both)

    def sums(self, who):
        tied = LAST if who == WATCHER or STAGE_OF[who] else FIRST
        return TorchSums(self.values[who], self.codec, tied=tied)

    async def average(self, *who, generation=1):
        sums = [self.sums(one) for one in who]
        async with asyncio.TaskGroup() as tasks:
            going = [
                tasks.create_task(
                    self.averagings[one].average(self.order(one, generation=generation), each)
                )
                for one, each in zip(who, sums, strict=True)
            ]
        return [each.reduced_N for each in sums], [task.result() for task in going]


def played(story, **options):
    async def main():
        async with asyncio.timeout(300.0), asyncio.TaskGroup() as tasks:
            return await story(Ends(tasks, **options))

    return run(main(), 1)


def segment(stage, reduced):
    span = LAST if stage else FIRST
    return reduced[span.start : span.stop]


def test_the_tensor_has_the_sum_of_both_stages_and_all_else_that_of_its_own():
    async def story(ends):
        return ends.values, await ends.average(*range(6))

    values, (reduced, outcomes) = played(story)

    stages = (*STAGE_OF, 1)
    both = sum(segment(stages[n], values[n]).double() for n in range(WATCHER))
    for stage, mine in zip(stages, reduced, strict=True):
        own = sum(v.double() for v, of in zip(values, STAGE_OF, strict=False) if of == stage)
        own[LAST.start if stage else FIRST.start :][: both.numel()] = both
        assert torch.allclose(mine.double(), own, atol=1e-5)
    assert len({outcome.digest for outcome in outcomes[:3]}) == 1
    assert len({outcome.digest for outcome in outcomes[3:]}) == 1
    assert len({outcome.tied for outcome in outcomes}) == 1
    norm = outcomes[0].squared_norm + outcomes[0].tied.squared_norm
    assert norm == pytest.approx(reduced[0].double().square().sum().item(), rel=1e-6)


@pytest.mark.parametrize("codec", ["raw", "fp16", "int8"])
def test_all_members_and_observers_of_both_stages_have_the_same_bytes(codec):
    async def story(ends):
        return await ends.average(*range(6))

    reduced, _ = played(story, codec=codec)

    held = {segment(s, r).numpy().tobytes() for s, r in zip((*STAGE_OF, 1), reduced, strict=True)}
    assert len(held) == 1
    assert len({each.numpy().tobytes() for each in reduced[3:]}) == 1


def test_a_member_that_dies_at_one_end_fails_the_averaging_of_the_other_and_no_sum_changes():
    async def story(ends):
        going = [
            asyncio.ensure_future(ends.averagings[n].average(ends.order(n), ends.sums(n)))
            for n in range(4)
        ]
        await asyncio.sleep(1.0)
        ends.world.kill(ends.peers[4], silent=False)
        before = [value.clone() for value in ends.values]
        outcomes = await asyncio.gather(*going, return_exceptions=True)
        return outcomes, all(map(torch.equal, before, ends.values))

    outcomes, unchanged = played(story)

    assert all(isinstance(each, SwarmError) for each in outcomes)
    assert unchanged


@pytest.mark.parametrize("who", [0, 4])
def test_an_order_that_takes_the_model_for_untied_is_refused(who):
    async def story(ends):
        with pytest.raises(BadMessage, match="tied otherwise"):
            await ends.averagings[who].average(ends.order(who, tied=False), ends.sums(who))
        untied = TorchSums(ends.values[who], "raw")
        with pytest.raises(BadMessage, match="tied otherwise"):
            await ends.averagings[who].average(ends.order(who), untied)

    played(story)
