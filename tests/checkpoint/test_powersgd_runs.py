"""Whole runs in low rank: deaths in either round, checkpoints, other cuts; one plain loop."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint.saved_run import CONFIG, SavedRun, corpus, saved_run, virtual
from checkpoint.test_going_back import done, played, until
from checkpoint.test_tied_runs import CLIPPED, DEATHS, norms_and_weights, train
from server.test_powersgd_training import MOMENTS, moment_of
from server.test_tied_training import named

from p2pswarm.base.errors import Unusable
from p2pswarm.checkpoint.verification import verify
from p2pswarm.node.run.resume import check_records, resumed_from
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone, WentBack

WITHIN = 1e-11
LOW = replace(
    CONFIG,
    stages=3,
    steps=8,
    optimizer=CLIPPED,
    batch=replace(CONFIG.batch, microbatches=6),
    codecs=replace(CONFIG.codecs, averaging="powersgd", averaging_rank=4),
)
MUON = replace(LOW, optimizer=replace(CLIPPED, name="muon", average_decay=0.9))
TIED = replace(LOW, model=replace(LOW.model, tie=True))
DELAYED = replace(LOW, delay=1)
SELECTIVE = replace(
    LOW, codecs=replace(LOW.codecs, averaging=("powersgd", "int-grid", "raw")), delay=1
)
FULL = pytest.mark.full


def assert_as_in_a_plain_loop(run: SavedRun, config: RunConfig) -> None:
    norms, theirs = norms_and_weights(config)
    told = run.seen(StepDone)
    assert [one.gradient_norm for one in told] == pytest.approx(norms[told[0].step :], rel=WITHIN)
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat.newest(config.steps)).items():
            assert (ours - theirs[name]).abs().max() <= WITHIN * theirs[name].abs().max(), name


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LOW, id="adamw", marks=FULL),
        pytest.param(MUON, id="muon", marks=FULL),
        pytest.param(TIED, id="tied", marks=FULL),
        pytest.param(DELAYED, id="delay", marks=FULL),
        pytest.param(SELECTIVE, id="selective"),
    ],
)
def test_servers_that_die_leave_no_trace(tmp_path: Path, config: RunConfig) -> None:
    deaths = DEATHS if config is not SELECTIVE else {1: 0, 3: 2, 4: 1}  # never the last of a stage

    run = train(tmp_path, config, range(1, 7), deaths)

    assert len(run.seen(MemberLost)) >= len(deaths)
    assert_as_in_a_plain_loop(run, config)


@pytest.mark.parametrize(
    "moment", [pytest.param(m, marks=() if m == "second part" else FULL) for m in MOMENTS]
)
def test_who_dies_in_a_round_of_averaging_leaves_no_trace(tmp_path: Path, moment: str) -> None:
    config = replace(DELAYED, stages=1)

    async def story():
        async with saved_run(tmp_path, config) as run:
            died = []

            async def compute(work):
                await asyncio.sleep(run.pace_s)
                if moment_of(work) == moment and len(run.seen(StepDone)) > 2 and not died:
                    died.append(moment)
                    asyncio.get_running_loop().call_soon(run.kill, 3)
                    await asyncio.Event().wait()
                return work()

            run.serve(1)
            run.serve(2)
            run.serve(3, compute=compute)
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
            assert died
        return run

    assert_as_in_a_plain_loop(virtual(story), config)


@pytest.mark.parametrize(
    ("config", "stages"),
    [
        pytest.param(MUON, 1, id="muon"),
        pytest.param(TIED, 2, id="tied", marks=FULL),
        pytest.param(TIED, 1, id="tied in one", marks=FULL),
        pytest.param(DELAYED, 4, id="delay", marks=FULL),
    ],
)
def test_a_checkpoint_holds_the_warm_factors_for_any_cut(tmp_path, config, stages) -> None:
    train(tmp_path, replace(config, steps=4), range(1, 5))
    after = replace(config, stages=stages)

    run = train(tmp_path, after, range(10, 15), resume=True, nonce=b"n" * 16)

    assert [one.step for one in run.seen(StepDone)] == [4, 5, 6, 7]
    assert_as_in_a_plain_loop(run, after)
    newest = max(tmp_path.iterdir(), key=lambda path: path.name.split(".step-")[1])
    assert verify(str(newest), lambda _line: None, check_records).ok


@pytest.mark.parametrize("delay", [0, pytest.param(1, marks=FULL)])
@pytest.mark.parametrize("every_steps", [3, pytest.param(100, marks=FULL)])
def test_a_run_that_goes_back_has_the_factors_of_that_version(tmp_path, every_steps, delay) -> None:
    config = replace(
        LOW, stages=2, steps=9, delay=delay, on_stage_lost="rewind", rewind_after_s=20.0
    )

    async def lost_stage(run):
        await until(run, done(4))
        run.kill(run.server_of(1))
        run.serve(7)

    run = played(tmp_path, lost_stage, config, every_steps)

    assert len(run.seen(WentBack)) == 1
    _, theirs = norms_and_weights(config)
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat.newest(config.steps)).items():
            assert (ours - theirs[name]).abs().max() <= WITHIN * theirs[name].abs().max(), name


@pytest.mark.parametrize(
    ("codecs", "part"),
    [
        ({"averaging": "raw"}, "codecs.averaging is powersgd in the checkpoint and raw here"),
        ({"averaging_rank": 5}, "codecs.averaging_rank is 4 in the checkpoint and 5 here"),
    ],
)
def test_a_checkpoint_of_other_factors_is_refused_in_one_line(tmp_path, codecs, part) -> None:
    train(tmp_path, replace(LOW, steps=4), range(1, 5))
    after = replace(LOW, codecs=replace(LOW.codecs, **codecs))

    with pytest.raises(Unusable, match=part):
        resumed_from(str(tmp_path), after, corpus(after).digest(), lambda _line: None)
