"""Each rule of the coordinator names all that it depends on: one that is not asked has no work."""

import pytest
from core import core_of
from trainer.coordinator.test_coordinator import cause_trouble
from trainer.toy_swarm import RUN, World
from trainer.toy_takeovers import Takeovers

from p2pswarm.trainer.coordinator.changes import Change, Effects
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reports.reports import MemberReady


class ThoroughCoordinator(Coordinator):
    """A coordinator that also applies the rules that are not asked, and looks at what they do."""

    def _apply_rules(self, now_s: float) -> None:
        for rule in self._rules:
            if not rule.asked:
                effects = rule.apply(now_s)
                assert effects is None or effects == Effects(), (rule.apply, effects)
        super()._apply_rules(now_s)


def play(world: World, replicas: int) -> None:
    """A run in which servers die, lose their links or freeze every few seconds."""
    for name in range(1, world.config.stages * replicas + 1):
        world.start(name)
    world.failure_share = 0.03
    world.later(3.0, cause_trouble, world)
    world.run(until_s=600.0)


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("seed", core_of(range(12), range(5)))
def test_a_rule_that_is_not_asked_has_nothing_to_do(seed: int, delay: int):
    world = World(seed, stages=1 + seed % 3, steps=8, microbatches=6, delay=delay)
    world.coordinator = ThoroughCoordinator(world.config, RUN)
    world.poison = {6 * step + seed % 6: seed % world.config.stages for step in (1, 4)}

    play(world, replicas=3)

    assert world.done


@pytest.mark.parametrize("seed", core_of(range(6), range(3)))
def test_nor_has_it_after_a_takeover(seed: int, monkeypatch):
    monkeypatch.setattr("trainer.toy_takeovers.Coordinator", ThoroughCoordinator)
    world = Takeovers(seed, stages=2, steps=8, microbatches=6)
    for at_s in (4.0, 9.0, 20.0):
        world.later(at_s, world.take_over)

    play(world, replicas=2)

    assert world.takeovers
    assert world.done


def test_effects_follow_one_another():
    joined = MemberReady(None, 0)
    effects = Effects([joined], Change.READY)

    effects += Effects(changes=Change.STATES)

    assert effects == Effects([joined], Change.READY | Change.STATES)
