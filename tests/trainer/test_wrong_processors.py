"""Processors that compute wrong, in real training: they are found, and the weights are right."""

import asyncio
import random
from dataclasses import replace

import pytest
import torch
from trainer.leadership.test_participant import CONFIG, Swarm, distance, peer, plain, trained

from p2pswarm.models.base import Bundle
from p2pswarm.models.compute.base import Engine, Stage
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.loop import run as run_simulated
from p2pswarm.trainer.reports.reports import MemberLost, ResultsTied, WrongResult

CHECKED = replace(
    CONFIG, steps=6, spot_check_share=1.0, batch=replace(CONFIG.batch, evaluate_every=0)
)
DELAYED = replace(CHECKED, delay=1)
every_run = pytest.mark.parametrize("config", [CHECKED, DELAYED], ids=["plain", "delay"])


class Faulty:
    """A stage on a processor that now and then gives one wrong number."""

    def __init__(self, stage: Stage, what: str, number: int) -> None:
        self._stage, self._what = stage, what
        self.number = number
        self._rng = random.Random(1)
        self.errors = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._stage, name)

    def forward(self, key, tokens, given) -> Bundle:
        return self._flipped("forward", self._stage.forward(key, tokens, given))

    def backward(self, key, gradient, spec) -> Bundle:
        return self._flipped("backward", self._stage.backward(key, gradient, spec))

    def finish(self, tokens, given, spec):
        result = self._stage.finish(tokens, given, spec)
        return replace(result, gradient=self._flipped("backward", result.gradient))

    def _flipped(self, what: str, bundle: Bundle) -> Bundle:
        if what != self._what or not bundle or self._rng.random() > 0.15:
            return bundle
        self.errors += 1
        wrong = bundle["x"].clone()
        wrong[0, 3, 5] += 0.25
        return {**bundle, "x": wrong}


def train(what: str, servers: int, config: RunConfig) -> tuple[Swarm, torch.Tensor, list[Faulty]]:
    faulty: list[Faulty] = []

    def spoilt(number: int, engine: Engine) -> Engine:
        wanted = engine.gives if what == "forward" else engine.takes  # of two stages
        first = not faulty or faulty[0].number == number
        if what == "nothing" or not wanted.keys or not first:
            return engine
        faulty.append(Faulty(engine.stage, what, number))
        odd = None if engine.odd is None else Faulty(engine.odd, what, number)
        faulty.extend([] if odd is None else [odd])
        return replace(engine, stage=faulty[0], odd=odd)

    async def story() -> tuple[Swarm, torch.Tensor]:
        async with asyncio.TaskGroup() as tasks:
            swarm = Swarm(tasks, config)
            swarm.engine_of = spoilt
            for number in range(2, 2 + servers):
                swarm.serve(number)
            ended, weights = await trained(swarm)
        assert not ended.failed, ended.reason
        return swarm, weights

    swarm, weights = run_simulated(story(), seed=1)
    return swarm, weights, faulty


@pytest.mark.parametrize(
    ("what", "config"),
    [
        pytest.param("forward", CHECKED, id="forward-plain"),
        pytest.param("forward", DELAYED, id="forward-delay", marks=pytest.mark.full),
        pytest.param("backward", CHECKED, id="backward-plain", marks=pytest.mark.full),
        pytest.param("backward", DELAYED, id="backward-delay"),
    ],
)
def test_a_faulty_server_is_named_and_the_weights_are_those_of_a_plain_loop(what: str, config):
    swarm, weights, faulty = train(what, 6, config)

    assert sum(one.errors for one in faulty) > 0
    found = {r.incarnation.peer for r in swarm.of_kind(WrongResult)}
    assert found == {peer(faulty[0].number).raw}
    assert distance(weights, plain(config).flat.params_N.detach()) <= 1e-9


@every_run
def test_checks_alone_change_nothing(config: RunConfig):
    swarm, weights, _ = train("nothing", 4, config)

    assert swarm.of_kind(WrongResult) == swarm.of_kind(ResultsTied) == []
    assert swarm.of_kind(MemberLost) == []
    assert distance(weights, plain(config).flat.params_N.detach()) <= 1e-9
