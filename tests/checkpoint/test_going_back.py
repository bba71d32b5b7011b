"""A run whose stage has lost its weights for good goes back to a checkpoint, and on from there."""

import asyncio
from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, plain_weights, saved_run, steps_saved, virtual

from p2pswarm.chain.record import RecordKind
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.checkpoint_reports import CheckpointSaved
from p2pswarm.trainer.rewind_reports import NewestCopy, WentBack

REWIND = replace(CONFIG, steps=9, on_stage_lost="rewind", rewind_after_s=20.0)


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


async def until(run, fact) -> None:
    """Wait until a report makes `fact` true."""
    there = asyncio.Event()
    run.on_report = lambda report: there.set() if fact(report) else None
    await there.wait()


def done(step: int):
    return lambda report: isinstance(report, act.StepDone) and report.step == step


def saved(step: int):
    return lambda report: isinstance(report, CheckpointSaved) and report.version == step


def test_the_weights_are_those_of_the_plain_loop_after_all_servers_of_a_stage_have_died(tmp_path):
    async def story():
        async with saved_run(tmp_path, REWIND, every_steps=3) as run:
            for number in (1, 2):
                run.serve(number)
            await until(run, done(4))
            assert steps_saved(tmp_path) == [3]
            lost = next(n for n, engine in run.engines.items() if run.stage_of(engine) == 1)
            run.kill(lost)
            run.serve(7)
            ended = await run.trainer.run()
            assert not ended.failed
        return run

    run = virtual(story)

    (copy,) = run.seen(NewestCopy)
    assert (copy.stages, copy.version, copy.saved) == ((1,), 5, 3)
    assert copy.rewind_s == pytest.approx(15.0, abs=0.1)
    assert run.seen(WentBack) == [WentBack(3, 5)]
    assert [report.step for report in run.seen(act.StepDone)] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8]
    assert equal(run.weights(), plain_weights(REWIND))
    records = list(run.chain.store.records(0, 99))
    assert [r.step for r in records if r.kind == RecordKind.BACK] == [3]
