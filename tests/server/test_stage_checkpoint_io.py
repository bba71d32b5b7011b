"""Servers that save their stage while they train, and load it from a checkpoint."""

import asyncio
from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, TRAINER, plain_weights, saved_run, steps_saved, virtual
from core import core_of

from p2pswarm.base.ids import PeerId
from p2pswarm.checkpoint.verification import verify
from p2pswarm.node.run.resume import check_records
from p2pswarm.progress.events import Checkpointed, CheckpointFailed
from p2pswarm.server.member_session import SavingLimits
from p2pswarm.trainer.reports.reports import (
    CheckpointProgress,
    StateFetched,
    StepDone,
)


def equal(ours, theirs) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


def train(target, config=CONFIG, servers=(1, 2, 3, 4), limits=None, **values):
    """Train to the end; returns the run."""

    async def story():
        async with saved_run(target, config, **values) as run:
            for number in servers:
                run.serve(number, limits)
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
            await run.trainer.save_state()
        return run

    return virtual(story)


def verified(path) -> tuple[bool, list[str]]:
    lines: list[str] = []
    return verify(str(path), lines.append, check_records).ok, lines


def newest(target) -> str:
    """The folder of the newest step, whatever its run."""
    return max((path.name for path in target.iterdir()), key=lambda name: name.split(".step-")[1])


def test_a_run_is_saved_while_it_trains_and_its_weights_are_those_of_a_plain_loop(tmp_path):
    run = train(tmp_path, replace(CONFIG, min_replicas=2))

    assert steps_saved(tmp_path) == [2, 4, 6]
    assert [report.step for report in run.seen(Checkpointed)] == [2, 4, 6]
    assert not run.seen(CheckpointFailed)
    saved = [record.saved for record in run.chain.store.records(0, CONFIG.steps)]
    assert saved == sorted(saved)  # each record tells the newest
    assert set(saved) == {0, 2, 4}
    assert equal(run.weights(), plain_weights(CONFIG))
    ok, lines = verified(tmp_path / newest(tmp_path))
    assert ok
    assert sum("whole in 2 of 2 files" in line for line in lines) == 2
    assert any("6 records lead from step 0 to step 6" in line for line in lines)


@pytest.mark.parametrize("window_bytes", [1, 1 << 30], ids=["waits", "copies"])
def test_what_is_saved_is_of_one_version_whatever_the_window_is(tmp_path, window_bytes):
    run = train(
        tmp_path,
        every_steps=1,
        limits=SavingLimits(targets=(str(tmp_path),), window_bytes=window_bytes),
    )

    assert equal(run.weights(), plain_weights(CONFIG))
    assert all(verified(path)[0] for path in tmp_path.iterdir())
    assert 6 in steps_saved(tmp_path)


def test_a_state_is_read_while_its_digest_is_computed(tmp_path):
    """Else the reader begins late, and the next commit waits for it."""

    async def story():
        read, hashed, parts = asyncio.Event(), [], []

        async def aside(work):
            parts.append(work())
            if len(parts) == 3:  # one piece each of weights and moments
                read.set()
            return parts[-1]

        async def background(work):
            hashed.append(work)
            if len(hashed) > 1:  # not of what was drawn
                await read.wait()
            return work()

        config = replace(CONFIG, stages=1, steps=1)
        async with saved_run(tmp_path, config, every_steps=1) as run:
            run.serve(1, aside=aside, background=background)
            ended = await run.trainer.run()
            assert not ended.failed, ended.reason
            await run.trainer.save_state()
        return run

    assert [report.step for report in virtual(story).seen(Checkpointed)] == [1]
    assert verified(tmp_path / newest(tmp_path))[0]


@pytest.mark.parametrize(("stages", "servers"), [(1, 1), (2, 3), (3, 3), (4, 6)])
@pytest.mark.parametrize("dtype", core_of(["float64", "float32"], ["float32"]))
def test_a_run_goes_on_bit_by_bit_with_another_cut_and_other_servers(
    tmp_path, stages, servers, dtype
):
    before = replace(CONFIG, model=replace(CONFIG.model, dtype=dtype))
    train(tmp_path, before)
    after = replace(before, stages=stages, steps=11)

    run = train(tmp_path, after, range(10, 10 + servers), resume=True, nonce=b"n" * 16)

    assert f"going on from step 6 of {tmp_path}" in run.said[0]
    assert any("loaded from" in line for line in run.said)
    assert [report.step for report in run.seen(StepDone)] == [6, 7, 8, 9, 10]
    assert equal(run.weights(), plain_weights(after))
    assert steps_saved(tmp_path)[-1] == 11
    ok, lines = verified(tmp_path / newest(tmp_path))
    assert ok
    assert any("5 records lead from step 6 to step 11" in line for line in lines)


def test_a_server_that_cannot_read_the_checkpoint_is_sent_the_state_by_one_that_could(tmp_path):
    train(tmp_path)
    config = replace(CONFIG, stages=1, steps=9, min_replicas=2)

    async def story():
        async with saved_run(tmp_path, config, resume=True, nonce=b"n" * 16) as run:
            other = replace(run.identity.origin, checkpoint=b"x" * 32)
            run.serve(1, origin=other)
            run.serve(2)
            ended = await run.trainer.run()
            assert not ended.failed
        return run

    run = virtual(story)
    (line,) = [line for line in run.said if "cannot be loaded here" in line]
    assert "that the run did not begin from" in line
    assert equal(run.weights(), plain_weights(config))


@pytest.mark.parametrize(
    "limits", [SavingLimits(), SavingLimits(allowed=False, targets=("/",))], ids=["plain", "never"]
)
def test_what_no_server_may_write_the_trainer_fetches_and_writes(tmp_path, limits):
    run = train(tmp_path, limits=limits)

    assert steps_saved(tmp_path)[-1] == 6
    assert not run.seen(CheckpointFailed)
    assert [report.stage for report in run.seen(StateFetched)] == [0, 1]  # each is said once
    assert sum("no checkpoint of step" in line for line in run.said) <= 4  # and at each server
    written = {path.name for path in (tmp_path / newest(tmp_path)).glob("stage-*")}
    assert all(TRAINER.peer_id.short in name for name in written)
    ok, lines = verified(tmp_path / newest(tmp_path))
    assert ok, lines
    assert equal(run.weights(), plain_weights(CONFIG))


def test_a_server_that_may_write_does_so_for_those_that_may_not(tmp_path):
    async def story():
        async with saved_run(tmp_path, replace(CONFIG, stages=1, min_replicas=4)) as run:
            for number in (1, 2, 3):
                run.serve(number, SavingLimits())
            run.serve(4)
            await run.trainer.run()
            await run.trainer.save_state()
        return run

    run = virtual(story)
    assert [report.step for report in run.seen(Checkpointed)] == [2, 4, 6]
    assert not run.seen(StateFetched)
    writer = PeerId(bytes([4]) * 32).short
    assert all(writer in path.name for path in tmp_path.glob("*/stage-*"))


def test_servers_that_open_nothing_are_sent_the_checkpoint_that_a_run_goes_on_from(tmp_path):
    train(tmp_path)
    after = replace(CONFIG, stages=3, steps=11, min_replicas=2)

    run = train(tmp_path, after, range(10, 16), limits=SavingLimits(), resume=True, nonce=b"n" * 16)

    assert sum("its trainer or another server is asked" in line for line in run.said) == 6
    assert [report.step for report in run.seen(StepDone)] == [6, 7, 8, 9, 10]
    assert equal(run.weights(), plain_weights(after))


def test_a_folder_that_cannot_be_written_costs_the_checkpoint_and_nothing_else(tmp_path):
    target = tmp_path / "target"
    target.write_text("a file, where a folder was meant")

    run = train(target)

    failed = run.seen(CheckpointFailed)
    assert failed
    assert all("was not written: " in report.reason for report in failed)
    assert all("\n" not in line for line in run.said)
    assert equal(run.weights(), plain_weights(CONFIG))


@pytest.mark.parametrize("target", ["", "simplecache::memory://x", "/etc"])
def test_a_target_that_no_trainer_may_name_is_refused(tmp_path, target):
    async def story():
        async with saved_run(tmp_path) as run:
            plan = run.trainer._context.saving
            object.__setattr__(plan, "config", replace(plan.config, target=target))
            for number in (1, 2):
                run.serve(number)
            await run.trainer.run()
        return run.said

    refused = [line for line in virtual(story) if "no checkpoint of step" in line]
    assert len(refused) == 2
    assert all("opens no target but those that its owner names" in line for line in refused)


def test_a_trainer_that_leaves_has_the_present_version_saved_and_trains_no_further(tmp_path):
    async def story():
        async with saved_run(tmp_path, replace(CONFIG, steps=10**6), every_steps=10**6) as run:
            for number in (1, 2, 3):
                run.serve(number)
            third = asyncio.Event()
            run.on_report = lambda _: len(run.seen(StepDone)) < 3 or third.set()
            await third.wait()
            await run.trainer.save_state()
            step = run.trainer.coordinator.step
            await asyncio.sleep(60)
            assert run.trainer.coordinator.step == step
        return run, step

    run, step = virtual(story)
    assert steps_saved(tmp_path) == [step]
    assert [report.step for report in run.seen(Checkpointed)] == [step]
    assert run.seen(CheckpointProgress)
    assert verified(tmp_path / newest(tmp_path))[0]


def test_a_trainer_that_leaves_before_the_first_step_has_nothing_to_save(tmp_path):
    async def story():
        async with saved_run(tmp_path) as run:
            await run.trainer.save_state()

    virtual(story)
    assert not list(tmp_path.iterdir())


def test_a_writer_that_dies_leaves_the_file_of_the_other(tmp_path):
    config = replace(CONFIG, steps=4)

    async def story():
        async with saved_run(tmp_path, config, every_steps=4) as run:
            for number in (1, 2, 3, 4):
                run.serve(number)

            def kill(report) -> None:
                if isinstance(report, StepDone) and report.step == 3:
                    run.running[1].cancel()

            run.on_report = kill
            await run.trainer.run()
            await run.trainer.save_state()
        return run

    run = virtual(story)
    assert [report.step for report in run.seen(Checkpointed)] == [4]
    assert verified(tmp_path / newest(tmp_path))[0]
