"""Whole runs with adapters: deaths, newcomers, checkpoints without their base, another cut."""

from dataclasses import replace

import pytest
from checkpoint.saved_run import CONFIG, steps_saved
from checkpoint.test_tied_runs import DEATHS, named, norms_and_weights, train
from core import core_of
from safetensors import safe_open

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.checkpoint.restore import roots_by_block
from p2pswarm.checkpoint.verification import verify
from p2pswarm.models.blocks import block_count
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.resume import check_records
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

WHOLE = replace(CONFIG, stages=2, steps=8, batch=replace(CONFIG.batch, microbatches=6))


def adapted(base: str) -> RunConfig:
    return resolved(replace(WHOLE, base=base, adapter=AdapterConfig(rank=2)))


def assert_as_in_a_plain_loop(run, config: RunConfig) -> None:
    norms, theirs = norms_and_weights(config)
    told = run.seen(StepDone)
    assert [one.gradient_norm for one in told] == pytest.approx(norms[told[0].step :], rel=1e-9)
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat).items():
            assert (ours - theirs[name]).abs().max() <= 1e-9 * theirs[name].abs().max()


def test_a_file_has_the_root_of_each_of_its_blocks_or_none() -> None:
    assert roots_by_block(range(2, 4), (b"a", b"b")) == {2: b"a", 3: b"b"}
    assert roots_by_block(range(2, 4), ()) == {}
    for found in ((b"a",), (b"a", b"b", b"c")):
        with pytest.raises(BadCheckpoint, match=r"with \d roots of frozen weights for 2 blocks: "):
            roots_by_block(range(2, 4), found)


@pytest.mark.parametrize("base", core_of(["full", "bf16", "int8", "nf4"], ["nf4"]))
def test_servers_that_die_leave_no_trace(tmp_path, base: str) -> None:
    deaths = {step: stage % WHOLE.stages for step, stage in DEATHS.items()}
    config = adapted(base)
    run = train(tmp_path, config, range(1, 5), deaths)

    assert len(run.seen(MemberLost)) >= len(deaths)
    assert [one.step for one in run.seen(StepDone)] == list(range(config.steps))
    assert_as_in_a_plain_loop(run, config)


def test_a_stage_whose_sums_are_on_a_grid_may_train_nothing(tmp_path) -> None:
    codecs = replace(WHOLE.codecs, averaging=("int-grid", "raw"))
    blocks = block_count(WHOLE.model)
    config = replace(adapted("full"), cut=(1, blocks - 1), codecs=codecs)  # first the embedding

    run = train(tmp_path, config, range(1, 6), {1: 1, 3: 1})

    assert_as_in_a_plain_loop(run, config)


@pytest.mark.parametrize("stages", core_of([1, 2, 3], [3]))
def test_a_run_goes_on_from_a_checkpoint_that_has_no_base(tmp_path, stages: int) -> None:
    config = adapted("nf4")
    train(tmp_path, replace(config, steps=4), range(1, 5))
    files = list(tmp_path.glob("*/*.safetensors"))
    assert files
    for path in files:
        with safe_open(path, "pt") as file:
            assert all("lora" in name for name in file.keys())  # noqa: SIM118
            assert len(file.metadata()["base"]) % 64 == 0
    after = replace(config, stages=stages)

    run = train(tmp_path, after, range(10, 14), resume=True, nonce=b"n" * 16)

    assert [one.step for one in run.seen(StepDone)] == [4, 5, 6, 7]
    assert_as_in_a_plain_loop(run, after)
    assert steps_saved(tmp_path)[-1] == 8
    newest = max(tmp_path.iterdir(), key=lambda path: path.name.split(".step-")[1])
    said: list[str] = []
    assert verify(str(newest), said.append, check_records).ok, said
