"""Whole runs with a delay: deaths, a checkpoint, going back; the weights are a plain loop's."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint.saved_run import CONFIG, saved_run, virtual
from checkpoint.test_tied_runs import CLIPPED, DEATHS, named, norms_and_weights, train

from p2pswarm.checkpoint.verification import verify
from p2pswarm.node.run.resume import check_records
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone, WentBack

DELAYED = replace(
    CONFIG,
    stages=3,
    steps=8,
    delay=1,
    optimizer=replace(CLIPPED, average_decay=0.5),
    batch=replace(CONFIG.batch, microbatches=6),
)
MUON = replace(DELAYED, optimizer=replace(CLIPPED, name="muon"))
TIED = replace(DELAYED, delay_correction=False, model=replace(CONFIG.model, tie=True))
every_run = pytest.mark.parametrize(
    "config",
    [
        pytest.param(MUON, id="muon"),
        pytest.param(TIED, id="tied", marks=pytest.mark.full),
        pytest.param(DELAYED, id="adamw", marks=pytest.mark.full),
    ],
)


def assert_as_in_a_plain_loop(run, config: RunConfig, within: float = 1e-11) -> None:
    _, theirs = norms_and_weights(config)
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat.newest(config.steps)).items():
            away = (ours - theirs[name]).abs().max()
            assert away <= within * theirs[name].abs().max(), name


@every_run
def test_servers_that_die_leave_the_weights_of_a_plain_loop(tmp_path: Path, config) -> None:
    run = train(tmp_path, config, range(1, 10), DEATHS)

    assert len(run.seen(MemberLost)) >= len(DEATHS)
    assert_as_in_a_plain_loop(run, config)


@every_run
def test_a_run_goes_on_from_a_checkpoint_with_both_versions(tmp_path: Path, config) -> None:
    train(tmp_path, replace(config, steps=4), range(1, 4))
    assert verify(str(tmp_path), lambda _line: None, check_records).ok

    run = train(tmp_path, config, range(10, 13), resume=True, nonce=b"n" * 16)

    assert run.seen(StepDone)[0].step == 4
    assert_as_in_a_plain_loop(run, config)


def test_a_checkpoint_serves_another_cut(tmp_path: Path) -> None:
    train(tmp_path, replace(DELAYED, steps=4), range(1, 4))

    run = train(tmp_path, replace(DELAYED, stages=1), range(10, 12), resume=True, nonce=b"n" * 16)

    assert_as_in_a_plain_loop(run, replace(DELAYED, stages=1))


def test_a_run_that_goes_back_takes_both_versions_from_the_checkpoint(tmp_path: Path) -> None:
    config = replace(CONFIG, steps=9, delay=1, on_stage_lost="rewind", rewind_after_s=20.0)

    async def story():
        async with saved_run(tmp_path, config, every_steps=3) as run:
            for number in (1, 2):
                run.serve(number)
            there = asyncio.Event()

            def after_four(report) -> None:
                if isinstance(report, StepDone) and report.step == 4:
                    there.set()

            run.on_report = after_four
            await there.wait()
            run.kill(run.server_of(1))
            run.serve(7)
            ended = await run.trainer.run()
            assert not ended.failed
            return run, {number: run.engines[number] for number in (7,)}

    run, engines = virtual(story)

    assert run.seen(WentBack) == [WentBack(3, 5)]
    _, theirs = norms_and_weights(config)
    for engine in engines.values():
        for name, ours in named(engine.weights._flat.newest(config.steps)).items():
            assert torch.equal(ours, theirs[name]), name
