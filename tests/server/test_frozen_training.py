"""Runs that freeze some of their model train what a plain loop trains; the rest stays as it is."""

import contextlib
import dataclasses
import json

import pytest
import torch
from models.families import family_run
from server import harness
from server.harness import (
    CONFIG,
    Swarm,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
)
from server.test_bundle_training import second_step_without_one_of

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.models.library.hf_library import config_text
from p2pswarm.models.model_source import resolved
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import RunConfig

STAGES = 3
VOCABULARY = 257
GPT = dataclasses.replace(CONFIG, stages=STAGES, model=dataclasses.replace(CONFIG.model, layers=4))


def of_family(name: str) -> RunConfig:
    model = family_run(name, vocab_size=VOCABULARY).model
    length = CONFIG.model.sequence_length
    model = dataclasses.replace(model, vocabulary=VOCABULARY, sequence_length=length)
    return dataclasses.replace(GPT, model=model)


def with_adapters(run: RunConfig, base: str = "full", **settings: object) -> RunConfig:
    return resolved(dataclasses.replace(run, base=base, adapter=AdapterConfig(rank=2, **settings)))


RUNS = {
    "adapters": with_adapters(GPT),
    "adapters on nf4": with_adapters(GPT, "nf4"),
    "a delay": dataclasses.replace(with_adapters(GPT, "nf4"), delay=1),
    "one target": with_adapters(GPT, targets=("blocks.4.mlp_out",)),
    "frozen embedding": resolved(dataclasses.replace(GPT, frozen=("blocks.0.*",))),
    "a frozen first stage": resolved(
        dataclasses.replace(GPT, cut=(2, 2, 2), frozen=("blocks.0.*", "blocks.1.*"))
    ),
    "a frozen last stage": resolved(
        dataclasses.replace(GPT, cut=(2, 2, 2), frozen=("blocks.4.*", "blocks.5.*"), base="bf16")
    ),
    "llama": with_adapters(of_family("llama"), "int8", dropout=0.1),
    "mixtral": with_adapters(of_family("mixtral"), "nf4"),
}
CORE = ("adapters on nf4", "a delay", "one target", "a frozen first stage", "llama")
every_run = pytest.mark.parametrize(
    "config",
    [
        pytest.param(run, id=name, marks=() if name in CORE else pytest.mark.full)
        for name, run in RUNS.items()
    ],
)


def flats_of(r: Swarm):
    """The memory of every server, the first stage's before the next one's."""
    flats = [r.engines[who][-1].weights._flat for who in r.servers]
    return sorted(flats, key=lambda flat: flat.numbers.start)


def assert_as_in_a_plain_loop(r: Swarm, steps: int, config: RunConfig) -> None:
    plain = plain_after(steps, config).flat
    theirs = dict(named_parameters(plain.numbers, plain.blocks))
    newest = [flat.newest(steps) for flat in flats_of(r)]
    ours = [item for flat in newest for item in named_parameters(flat.numbers, flat.blocks)]
    assert {name for name, _ in ours} == theirs.keys()
    within = 1e-12 if config.model.dtype == "float64" else 1e-4  # AdamW enlarges what rounds
    assert_equal([x for _, x in ours], [theirs[name] for name, _ in ours], within)


@every_run
def test_what_trains_is_what_a_plain_loop_trains(config: RunConfig) -> None:
    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * config.stages))
            bases = [torch.cat(flat.base.buffers).clone() for flat in flats_of(r)]
            for _ in range(3):
                await r.trainer.whole_step()
                assert all(len(r.digests(stage)) == 1 for stage in range(config.stages))
            assert_as_in_a_plain_loop(r, 3, config)
            for flat, before in zip(flats_of(r), bases, strict=True):
                assert torch.equal(torch.cat(flat.base.buffers), before)

    virtual(main)


def test_what_is_done_again_draws_as_it_did_in_all_stages() -> None:
    """Stages that had counted a microbatch only pass it on: with dropout, as in training."""
    model = of_family("gpt2").model
    config = json.loads(model.config) | {"resid_pdrop": 0.1}
    run = dataclasses.replace(GPT, model=dataclasses.replace(model, config=config_text(config)))

    async def main():
        async with swarm(run) as r:
            await second_step_without_one_of(1, r)
            assert_as_in_a_plain_loop(r, 2, run)

    virtual(main)


@every_run
def test_what_a_killed_server_had_counted_is_counted_once(config: RunConfig) -> None:
    async def main():
        async with swarm(config) as r:
            await second_step_without_one_of(1, r)
            assert_as_in_a_plain_loop(r, 2, config)

    virtual(main)


def test_a_newcomer_whose_files_are_of_another_revision_is_told_so(monkeypatch) -> None:
    config = RUNS["adapters on nf4"]

    def of_another_revision(*given, **also):
        engine = torch_engine(*given, **also)
        base = engine.weights._flat.base
        base.buffers[0][0] ^= 1
        base.use()
        return engine

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 2 + 2 * config.stages))
            await r.trainer.whole_step()
            monkeypatch.setattr(harness, "torch_engine", of_another_revision)
            r.serve(20)
            with pytest.raises(Unusable, match="of the same revision as the other members"):
                await r.running[peer(20).raw]

    with contextlib.suppress(BaseExceptionGroup):  # what ends a server ends the group, too
        virtual(main)
