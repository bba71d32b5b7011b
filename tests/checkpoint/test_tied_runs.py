"""Whole runs of tied models: servers die at both ends, checkpoints, another cut; one plain loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint.saved_run import CONFIG, SavedRun, corpus, saved_run, steps_saved, virtual
from core import core_of

from p2pswarm.checkpoint.verification import verify
from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.node.run.resume import check_records
from p2pswarm.progress.events import Report
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

CLIPPED = replace(CONFIG.optimizer, clip_norm=0.05)  # below every norm, so that each step is scaled
TIED = replace(
    CONFIG,
    stages=3,
    steps=8,
    optimizer=CLIPPED,
    model=replace(CONFIG.model, tie=True),
    batch=replace(CONFIG.batch, microbatches=6),
)
DEATHS = {1: 0, 2: 2, 3: 1, 5: 2, 6: 0}
"""After which steps a server of which stage dies."""


def named(flat):
    return dict(named_parameters(flat.numbers, flat.blocks))


def norms_and_weights(config: RunConfig):
    """What one loop in one process makes: the norm of each step, and the weights."""
    plain, size, text = ReferenceTrainer(config), config.batch.microbatches, corpus(config)
    norms = []
    for step in range(config.steps):
        numbers = range(step * size, (step + 1) * size)
        plain.add_all([torch.from_numpy(text.microbatch(number)) for number in numbers])
        norms.append(plain.commit(learning_rate(config, step)))
    return norms, named(plain.flat)


def assert_as_in_a_plain_loop(run: SavedRun, config: RunConfig) -> None:
    norms, theirs = norms_and_weights(config)
    told = run.seen(StepDone)
    assert [one.gradient_norm for one in told] == pytest.approx(norms[told[0].step :], rel=1e-12)
    for engine in run.engines.values():
        flat = engine.weights._flat
        for name, ours in named(flat).items():
            assert (ours - theirs[name]).abs().max() <= 1e-11 * theirs[name].abs().max()
    ends = {engine.weights.tied_digest() for engine in run.engines.values()} - {b""}
    assert len(ends) == (config.tied_ends is not None)


def train(target: Path, config: RunConfig, servers, deaths=None, **values) -> SavedRun:
    async def story():
        async with saved_run(target, config, **values) as run:

            def die(report: Report) -> None:
                if isinstance(report, StepDone) and report.step in (deaths or {}):
                    lost = run.server_of(deaths[report.step])
                    run.kill(lost)
                    run.serve(100 + lost)

            run.on_report = die
            for number in servers:
                run.serve(number)
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
            await run.trainer.save_state()
        return run

    return virtual(story)


def test_servers_that_die_at_either_end_leave_no_trace_in_weights_and_norms(tmp_path):
    run = train(tmp_path, TIED, range(1, 7), DEATHS)

    assert len(run.seen(MemberLost)) >= len(DEATHS)
    assert [one.step for one in run.seen(StepDone)] == list(range(TIED.steps))
    assert_as_in_a_plain_loop(run, TIED)


@pytest.mark.parametrize("stages", core_of([1, 2, 4], [4]))
def test_a_tied_run_goes_on_from_a_checkpoint_in_another_cut(tmp_path, stages):
    train(tmp_path, replace(TIED, steps=4), range(1, 5))
    after = replace(TIED, stages=stages)

    run = train(tmp_path, after, range(10, 15), resume=True, nonce=b"n" * 16)

    assert [one.step for one in run.seen(StepDone)] == [4, 5, 6, 7]
    assert_as_in_a_plain_loop(run, after)
    assert steps_saved(tmp_path)[-1] == 8
    newest = max(tmp_path.iterdir(), key=lambda path: path.name.split(".step-")[1])
    assert verify(str(newest), lambda _line: None, check_records).ok


def test_a_fault_in_the_memory_of_one_end_ends_the_run_with_the_remedy(tmp_path):
    """Its stage has no other server, so nobody else could tell."""

    async def story():
        async with saved_run(tmp_path, TIED) as run:

            def damage(report: Report) -> None:
                if isinstance(report, StepDone) and report.step == 2:
                    flat = run.engines[run.server_of(2)].weights._flat
                    flat.exp_avg_N[flat.tied.start + 5] += 1.0

            run.on_report = damage
            for number in (1, 2, 3):
                run.serve(number)
            return await run.trainer.run()

    ended = virtual(story)

    assert ended.failed
    assert "the tied tensor of stages 0 and 2 is not the same" in ended.reason
    assert "--resume" in ended.reason
