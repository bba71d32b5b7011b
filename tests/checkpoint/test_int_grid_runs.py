"""Whole runs on a grid: deaths, checkpoints and other cuts leave the bits of one plain loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoint.saved_run import CONFIG
from checkpoint.test_tied_runs import CLIPPED, DEATHS, named, norms_and_weights, train

from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.reports.reports import MemberLost, StepDone

GRID = replace(
    CONFIG,
    stages=3,
    steps=8,
    optimizer=CLIPPED,
    model=replace(CONFIG.model, dtype="float32"),
    batch=replace(CONFIG.batch, microbatches=6),
    codecs=replace(CONFIG.codecs, activation="dither6", gradient="dither3", averaging="int-grid"),
)
MUON = replace(GRID, optimizer=replace(CLIPPED, name="muon"))
TIED = replace(GRID, model=replace(GRID.model, tie=True))
DELAYED = replace(GRID, delay=1)
DELAYED_MUON = replace(MUON, delay=1)
FULL = pytest.mark.full


def assert_bits_of_a_plain_loop(run, config: RunConfig) -> None:
    _, theirs = norms_and_weights(config)
    for engine in run.engines.values():
        for name, ours in named(engine.weights._flat.newest(config.steps)).items():
            assert torch.equal(ours, theirs[name]), name


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MUON, id="muon"),
        pytest.param(TIED, id="tied", marks=FULL),
        pytest.param(DELAYED, id="delay", marks=FULL),
        pytest.param(DELAYED_MUON, id="delay-muon", marks=FULL),
    ],
)
def test_servers_that_die_leave_no_trace_in_any_bit(tmp_path: Path, config: RunConfig) -> None:
    run = train(tmp_path, config, range(1, 7), DEATHS)

    assert len(run.seen(MemberLost)) >= len(DEATHS)
    assert_bits_of_a_plain_loop(run, config)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(MUON, id="muon", marks=FULL),
        pytest.param(TIED, id="tied", marks=FULL),
        pytest.param(DELAYED, id="delay", marks=FULL),
        pytest.param(DELAYED_MUON, id="delay-muon"),
    ],
)
def test_a_checkpoint_holds_the_grid(tmp_path: Path, config: RunConfig) -> None:
    train(tmp_path, replace(config, steps=4), range(1, 5))

    run = train(tmp_path, config, range(10, 15), resume=True, nonce=b"n" * 16)

    assert_bits_of_a_plain_loop(run, config)


@pytest.mark.parametrize("name", ["raw", pytest.param("bf16", marks=FULL)])
def test_a_delayed_run_goes_on_without_the_grid_in_the_same_cut(tmp_path: Path, name: str) -> None:
    """Its checkpoint has second moments of the former version, which the run has no more."""
    train(tmp_path, replace(DELAYED, steps=4), range(1, 5))
    other = replace(DELAYED, codecs=replace(DELAYED.codecs, averaging=name, exact=False))

    run = train(tmp_path, other, range(10, 15), resume=True, nonce=b"n" * 16)

    assert [report.step for report in run.seen(StepDone)] == list(range(4, other.steps))


def test_a_run_without_rounded_boundaries_has_the_same_bits_in_another_cut(tmp_path: Path) -> None:
    exact = replace(TIED, codecs=replace(TIED.codecs, activation="raw", gradient="raw"))
    train(tmp_path, replace(exact, steps=4), range(1, 5))

    run = train(tmp_path, replace(exact, stages=1), range(10, 13), resume=True, nonce=b"n" * 16)

    assert_bits_of_a_plain_loop(run, exact)
