"""A run whose stage has lost its weights for good goes back to a checkpoint, and on from there."""

import asyncio
import json
from dataclasses import replace

import pytest
import torch
from checkpoint.saved_run import CONFIG, plain_weights, saved_run, steps_saved, virtual

from p2pswarm.command_line import main
from p2pswarm.progress.events import Checkpointed
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, log_entry
from p2pswarm.run.chain.record import RecordKind
from p2pswarm.trainer.reports.reports import CannotGoBack, NewestCopy, StepDone, WentBack

REWIND = replace(CONFIG, steps=9, on_stage_lost="rewind", rewind_after_s=20.0)


def equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


async def until(run, fact) -> None:
    """Wait until a report makes `fact` true."""
    there = asyncio.Event()
    run.on_report = lambda report: there.set() if fact(report) else None
    await there.wait()


async def stopped_for(run, number: int, seconds: float) -> None:
    """A server's process stands still, and goes on later."""
    run.world.freeze(run.processes[number])
    await asyncio.sleep(seconds)
    run.world.thaw(run.processes[number])


def played(target, story, config=REWIND, every_steps=3):
    """A run of two servers in which `story` happens, after its end."""

    async def whole():
        async with saved_run(target, config, every_steps=every_steps) as run:
            for number in (1, 2):
                run.serve(number)
            await story(run)
            ended = await run.trainer.run()
            assert not ended.failed
        return run

    return virtual(whole)


def done(step: int):
    return lambda report: isinstance(report, StepDone) and report.step == step


def saved(step: int):
    return lambda report: isinstance(report, Checkpointed) and report.step == step


def test_the_weights_are_those_of_the_plain_loop_after_all_servers_of_a_stage_have_died(tmp_path):
    async def story(run):
        await until(run, done(4))
        assert steps_saved(tmp_path) == [3]
        run.kill(run.server_of(1))
        run.serve(7)

    run = played(tmp_path, story)

    (copy,) = run.seen(NewestCopy)
    assert (copy.stages, copy.version, copy.saved) == ((1,), 5, 3)
    assert copy.rewind_s == pytest.approx(15.0, abs=0.1)
    assert run.seen(WentBack) == [WentBack(3, 5)]
    assert [report.step for report in run.seen(StepDone)] == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8]
    assert equal(run.weights(), plain_weights(REWIND))
    records = list(run.chain.store.records(0, 99))
    assert [r.step for r in records if r.kind == RecordKind.BACK] == [3]


def test_nothing_is_done_anew_if_the_checkpoint_is_of_the_very_step(tmp_path):
    """The servers of the other stage keep their weights; only the lost one is loaded."""

    async def story(run):
        await until(run, saved(3))
        assert run.trainer.coordinator.step == 3
        run.kill(run.server_of(1))
        run.serve(7)

    run = played(tmp_path, story)

    assert run.seen(WentBack) == [WentBack(3, 3)]
    assert equal(run.weights(), plain_weights(REWIND))


def test_a_run_without_a_checkpoint_goes_back_to_its_first_weights(tmp_path):
    async def story(run):
        await until(run, done(2))
        run.kill(run.server_of(0))
        run.serve(7)

    run = played(tmp_path, story, every_steps=100)

    assert run.seen(WentBack) == [WentBack(0, 3)]
    assert equal(run.weights(), plain_weights(REWIND))


def test_a_server_that_comes_back_in_time_brings_its_weights_and_nothing_is_done_anew(tmp_path):
    config = replace(REWIND, rewind_after_s=60.0)

    async def story(run):
        await until(run, done(4))
        await stopped_for(run, run.server_of(1), 40.0)

    run = played(tmp_path, story, config)

    assert run.seen(WentBack) == []
    assert len(run.seen(StepDone)) == config.steps
    assert equal(run.weights(), plain_weights(config))


def test_a_server_that_comes_back_later_drops_the_weights_of_steps_that_were_taken_back(tmp_path):
    async def story(run):
        await until(run, done(4))
        run.late = run.servers[run.server_of(1)]
        late = run.processes[run.server_of(1)]
        run.world.freeze(late)
        run.pace_s = 2.0  # the run is still at it when the other one comes back
        run.serve(7, stage=1)
        await until(run, done(3))
        run.world.thaw(late)

    run = played(tmp_path, story)

    assert run.seen(WentBack) == [WentBack(3, 5)]
    assert run.late.version == REWIND.steps
    assert equal(run.weights(), plain_weights(REWIND))


def test_a_checkpoint_that_is_damaged_is_named_and_the_one_before_is_used(tmp_path):
    async def story(run):
        await until(run, saved(4))
        newest = max(tmp_path.iterdir(), key=lambda path: path.name)
        for path in newest.glob("stage-000-*"):
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        run.kill(run.server_of(1))
        run.serve(7)

    run = played(tmp_path, story, every_steps=2)

    assert [report.version for report in run.seen(WentBack)] == [2]
    assert any("step-000000004" in report.reason for report in run.seen(CannotGoBack))
    assert equal(run.weights(), plain_weights(REWIND))


def test_a_spare_server_of_another_stage_takes_the_lost_one_when_no_newcomer_does(tmp_path):
    """Two servers of stage 0 are left: one moves, and loads stage 1 from the checkpoint."""

    async def story():
        async with saved_run(tmp_path, REWIND, every_steps=3) as run:
            for number in (1, 2, 3):
                run.serve(number)
            await until(run, done(4))
            lost = [n for n, server in run.servers.items() if server.stage == 1]
            assert len(lost) == 1
            run.kill(*lost)
            ended = await run.trainer.run()
            assert not ended.failed
            return run, [server.stage for n, server in run.servers.items() if n not in lost]

    run, stages = virtual(story)

    assert run.seen(WentBack) == [WentBack(3, 5)]
    assert equal(run.weights(), plain_weights(REWIND))
    assert sorted(stages) == [0, 1]


def test_a_run_that_went_back_is_verified_with_all_its_records(tmp_path, capsys):
    """Its chain has the steps that were taken back, the record that did it, and those after it."""

    async def story():
        async with saved_run(tmp_path, REWIND, every_steps=3) as run:
            for number in (1, 2):
                run.serve(number)
            await until(run, done(4))
            run.kill(run.server_of(1))
            run.serve(7)
            assert not (await run.trainer.run()).failed
            await run.trainer.save_state()
            return run.chain.restored.learner.chain.head.digest.hex()

    head = virtual(story)
    newest = max(tmp_path.glob("*.step-000000009.*"))

    assert main(["verify", str(newest)]) == 0
    said = capsys.readouterr().out
    assert "12 records lead from step 0 to step 9, and went back to step 3 on the way" in said
    assert main(["verify", str(newest), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "steps": 9, "head": head}

    kept = newest / "chain.records"
    kept.write_bytes(without_back(kept.read_bytes()))
    assert main(["verify", str(newest), "--json"]) == 1
    found = capsys.readouterr()
    assert json.loads(found.out)["ok"] is False
    assert "chain: " in found.err


def without_back(data: bytes) -> bytes:
    """A file of records from which the one that leads back is taken out."""
    reader, kept = LogReader("records"), data[:HEADER_BYTES]
    for entry in reader.feed(data[HEADER_BYTES:]):
        if entry.message.kind != RecordKind.BACK:
            kept += log_entry(entry.message)
    return kept
