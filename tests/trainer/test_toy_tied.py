"""The coordinator of a tied model: whatever dies, each microbatch is in the tensor once an end."""

from dataclasses import replace

import pytest
from core import core_of
from trainer.coordinator.test_coordinator import cause_trouble, copies
from trainer.toy_server import Server, digest
from trainer.toy_swarm import RUN, World

from p2pswarm.run.chain.record import QUARANTINED
from p2pswarm.run.messages.step import Reduce, Reduced, TiedReduced
from p2pswarm.settings.config import ModelConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reports import actions as act


class TiedWorld(World):
    """Servers whose ends average one tensor: both add the microbatches of their sums to it."""

    def __init__(self, seed: int, stages: int) -> None:
        super().__init__(seed, stages, steps=8, microbatches=6)
        self.config = replace(self.config, model=ModelConfig(tie=True))
        self.coordinator = Coordinator(self.config, RUN)
        self.both: dict[tuple, tuple] = {}
        """What each server has in the tensor, by peer and generation."""

    def reduced(self, server: Server, message: Reduce, summed: tuple) -> Reduced:
        answer = super().reduced(server, message, summed)
        if message.tied is None:
            return answer
        base = message.step * self.config.batch.microbatches
        partners = [self.servers[peer] for peer in message.tied.group]
        both = tuple(sorted(m - base for one in partners for m in one.summed))
        self.both[server.peer, message.generation] = both
        return replace(answer, tied=TiedReduced(digest(both), 1.0, b"s"))

    def check(self, done: act.Decide) -> None:
        super().check(done)
        holders = done.stages[0].holders
        whole = [i for i in range(self.config.batch.microbatches) if holders[i] != QUARANTINED]
        for stage in self.config.tied_ends or ():
            for member in done.stages[stage].members:
                both = self.both[member.peer, done.generation]
                assert both == tuple(sorted(2 * whole)), (done.step, stage)


def swarm(seed: int) -> TiedWorld:
    world = TiedWorld(seed, stages=2 + seed % 2)
    for name in range(1, 3 * world.config.stages + 1):
        world.start(name)
    return world


@pytest.mark.parametrize("seed", core_of(range(40), range(14)))
def test_whatever_dies_or_freezes_each_microbatch_is_in_it_once_from_either_end(seed: int):
    world = swarm(seed)
    world.failure_share = 0.03
    world.poison = {6 * step + seed % 6: 0 for step in (2, 5)} if seed % 4 == 0 else {}
    world.later(3.0, cause_trouble, world)

    world.run(until_s=3000.0)

    assert [lost for lost in world.lost if "another had counted" in lost.reason] == []
    if world.ended is None:
        assert not all(copies(world, stage) for stage in range(world.config.stages)), "stuck"
    else:
        assert not world.ended.failed, world.ended.reason
        assert [d.step for d in world.done] == list(range(8))


@pytest.mark.parametrize("seed", core_of(range(20), range(8)))
def test_a_commit_that_reaches_nobody_is_sent_again_to_both_ends(seed: int):
    world = swarm(seed)
    world.failure_share, world.lost_share = 0.02, 0.35

    world.run(until_s=3000.0)

    assert world.ended is not None, "stuck"
    assert not world.ended.failed
    assert [d.step for d in world.done] == list(range(8))
    assert [lost for lost in world.lost if "differ" in lost.reason] == []
