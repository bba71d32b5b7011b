"""`p2pswarm plan devices.toml`: what it prints and writes, and what it says of a bad file."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from local_hub import local_hub
from safetensors.torch import save

from p2pswarm import cli
from p2pswarm.commands.node import EXAMPLES
from p2pswarm.commands.plan.devices import held_bytes_per_value, load_of
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.library.hf_library import config_text, library_model
from p2pswarm.models.model_source import resolved
from p2pswarm.plan.device_file import PlanOptions
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import CodecConfig, ModelConfig, OptimizerConfig, RunConfig
from p2pswarm.settings.parser import load

MODEL = """
[run.model]
d_model = 64
layers = 6
heads = 2
sequence_length = 64
"""
LOW = '[run]\nprecision = "bf16"\nweight_storage = "bf16"\n'
DEVICE = """
[[device]]
name = "{name}"
count = {count}
region = "{site}"
tflops = 1e-3
memory_gib = 4.0
access_gbps = 1.0
"""
OREGON, TOKYO, HOME = (
    DEVICE.format(name=name, count=count, site=site)
    for name, count, site in (("west", 2, "Oregon"), ("east", 2, "Tokyo"), ("own", 1, "home"))
)
AWS = 'network = "aws"\n'
LINK = '[[link]]\nbetween = ["home", "{}"]\nrtt_ms = 9\ngbps = 1\n'


def plan(tmp_path, text, *flags):
    """The command's exit code, on a file with this text."""
    path = tmp_path / "devices.toml"
    path.write_text(text)
    return cli.main(["plan", str(path), "--seconds", "0.2", *flags])


def test_plan_is_printed_and_written_as_json_settings_and_picture(tmp_path, capsys):
    out, folder = tmp_path / "plan.json", tmp_path / "plan"
    text = AWS + OREGON + TOKYO + "[plan]\nstages = [2]\nconnections = 2\n" + MODEL

    assert plan(tmp_path, text, "--json", str(out), "--out", str(folder)) == 0

    printed = capsys.readouterr().out
    found = json.loads(out.read_text())
    assert re.match(r"[\d.]+ s a step, and no plan takes less\n", printed)  # all were tried
    assert found["proven"]
    assert "one more west: " in printed
    assert "limit: " in printed
    assert found["objective"] == "pipelined"
    assert 0 < found["lower_bound"] <= found["seconds_per_step"]
    named = {name for stage in found["stages"] for name in stage} | set(found["unused"])
    assert named == {"west-1", "west-2", "east-1", "east-2"}
    assert found["evaluations"] > 0
    for edge in found["edges"]:
        assert edge["from"] in found["stages"][0]
        assert edge["to"] in found["stages"][1]
        assert edge["connections"] in (1, 2)
        assert edge["connections"] <= min(
            found["connections"][edge["from"]], found["connections"][edge["to"]]
        )
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")
    trainer = load(folder / "run.toml")
    assert trainer.role == "trainer"
    assert trainer.run.stages == 2
    assert list(trainer.run.cut) == found["cut"]
    assert len(stage_blocks(trainer.run, 0)) == found["cut"][0]
    for stage, names in enumerate(found["stages"]):
        for name in names:
            server = load(folder / f"{name}.toml")
            assert (server.serve.stage, server.serve.planned_stage) == (None, stage)
            assert server.network.bulk_connections == found["connections"][name]


@pytest.mark.parametrize(
    ("delay", "says"),
    [(0, "run.delay = 1 would let steps overlap: "), (1, "with run.delay = 1: ")],
)
def test_plan_says_what_a_delay_brings_and_costs(tmp_path, capsys, delay, says):
    text = AWS + OREGON + TOKYO + f"[plan]\nstages = [2]\n[run]\ndelay = {delay}\n" + MODEL

    assert plan(tmp_path, text) == 0

    (line,) = (line for line in capsys.readouterr().out.split("\n") if "run.delay" in line)
    assert line.strip().startswith(says)
    assert "% speed, for up to 2 % more loss at equal steps" in line


@pytest.mark.full
def test_example_is_a_file_that_can_be_planned(tmp_path, capsys):
    assert cli.main(["plan", "--example"]) == 0
    text = capsys.readouterr().out
    assert text == (EXAMPLES / "devices.toml").read_text()
    assert tomllib.loads(text)["plan"]["connections"] == 4

    assert plan(tmp_path, text.replace("stages = []", "stages = [2, 4]")) == 0
    assert re.search(r" s a step, at most \d+ % above the best: ", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"there is no \[\[device\]\]: name the machines"),
        ("[", "not TOML"),
        (AWS + OREGON + OREGON, r"two \[\[device\]\] are named 'west': give each a name"),
        (AWS + OREGON.replace("Oregon", "oregan"), "no region 'oregan': did you mean 'Oregon'"),
        (
            OREGON,
            "no link between 'Oregon' and 'Oregon': add .*between = \\[\"Oregon\", \"Oregon\"",
        ),
        (AWS + OREGON + HOME, "network aws has no region 'home'"),
        (AWS + OREGON + TOKYO + HOME + LINK.format("Oregon"), "no link between 'Tokyo' and 'home'"),
        (
            AWS + OREGON + LINK.format("Oregon"),
            r"names the site 'home', where no \[\[device\]\] is",
        ),
        (HOME + LINK.format('home", "Oregon'), r"link\[0\]: between names 3 sites: name two"),
        (
            HOME + LINK.format("home").replace("gbps = 1", "gbps = -1"),
            r"link\[0\].gbps is a number",
        ),
        (HOME.replace("1e-3", "-2.0"), r"device\[0\].tflops is a number from"),
        (HOME.replace("memory_gib = 4.0", ""), r"device\[0\].memory_gib is missing"),
        (HOME.replace("4.0", '"much"'), r"device\[0\].memory_gib is a number"),
        (HOME.replace("count = 1", "count = 5000"), r"device\[0\].count is a whole number from 1"),
        (HOME + "speed = 3\n", "speed"),
        (HOME + "[plan]\nstages = [9]\n" + MODEL, "9 stages of a model of 8 blocks: choose 8 or"),
        (HOME + "[plan]\nstages = [2]\n" + MODEL, "2 stages need 2 devices, and there are 1"),
        (HOME + '[plan]\ncodecs = ["mp3"]\n', r"plan.codecs\[0\] is one of raw, planes-zstd"),
        (HOME + '[plan]\ncodecs = ["nvfp4"]\n', 'plan.codecs.* not "nvfp4"'),
        (HOME + "[plan]\ncodecs = []\n" + MODEL, "codecs is empty: name one at least"),
        (HOME + "[plan]\nworking_gib = 5.0\n" + MODEL, "no cut into 1 stages fits the devices'"),
        (HOME + "[run]\nstages = 300\n", "run.stages is a whole number from 1 to 256"),
    ],
)
def test_file_that_no_plan_can_be_made_of_is_one_line_with_the_remedy(tmp_path, capsys, text, says):
    code = plan(tmp_path, text)

    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1)
    assert error.startswith("error: ")
    assert re.search(says, error)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ([], "no file of devices: p2pswarm plan --example > devices.toml"),
        (["none.toml"], "none.toml cannot be read: No such file"),
        (["--objective", "dtfm"], "--objective dtfm needs links and a task: --matrix FILE.json"),
        (["--objective", "pipelined", "--matrix", "x"], "--matrix is for --objective dtfm"),
        (["--matrix", "x", "--out", "y"], "--out is for a file of devices"),
    ],
)
def test_flags_that_contradict_each_other_say_which(capsys, flags, says):
    assert cli.main(["plan", *flags]) == 2
    assert says in capsys.readouterr().err


def test_no_time_says_so(tmp_path, capsys):
    assert plan(tmp_path, HOME + MODEL, "--seconds", "0") == 2
    assert "give it a second at least" in capsys.readouterr().err


def test_a_run_does_not_wait_for_more_servers_of_a_stage_than_its_plan_has(tmp_path):
    text = AWS + OREGON + TOKYO + "[plan]\nstages = [3]\n[run]\nmin_replicas = 2\n" + MODEL

    assert plan(tmp_path, text, "--out", str(tmp_path / "plan")) == 0

    assert load(tmp_path / "plan" / "run.toml").run.min_replicas == 1


def test_a_list_of_averagings_is_of_the_stages_that_it_was_made_for(tmp_path, capsys):
    codecs = '[run.codecs]\naveraging = ["raw", "int-grid"]\n'
    text = AWS + OREGON + TOKYO + "[plan]\nstages = [3]\n" + MODEL + codecs

    assert plan(tmp_path, text, "--out", str(tmp_path / "plan")) == 0

    assert load(tmp_path / "plan" / "run.toml").run.codecs.averaging == "raw"
    assert 'codecs.averaging = "raw": its list was of 2 stages' in capsys.readouterr().out


def test_a_run_whose_codecs_are_measured_keeps_that(tmp_path, capsys):
    own = '[run.codecs]\nchoice = "measured"\n'
    codecs = '[plan]\nstages = [2]\ncodecs = ["dither6/dither3"]\n'

    assert plan(tmp_path, AWS + OREGON + TOKYO + codecs + MODEL + own, "--out", str(tmp_path)) == 0

    found = load(tmp_path / "run.toml").run.codecs
    assert (found.choice, found.activation, found.gradient) == ("measured", "bf16", "bf16")
    assert "begins with bf16, and goes as far as dither6/dither3" in capsys.readouterr().out


def test_links_that_need_several_connections_are_named(tmp_path, capsys):
    thin = "".join(
        LINK.format(site).replace("gbps = 1", "gbps = 0.00001") for site in ("home", "off")
    )
    both = HOME + HOME.replace('"own"', '"other"').replace('"home"', '"off"')
    out = tmp_path / "plan.json"
    text = thin + both + "[plan]\nstages = [2]\nconnections = 3\n" + MODEL

    assert plan(tmp_path, text, "--json", str(out)) == 0

    (edge,) = json.loads(out.read_text())["edges"]
    assert edge["connections"] == 3
    printed = capsys.readouterr().out
    assert re.search(
        r"links that need several: \w+ to \w+ 3; a device's settings have one", printed
    )


def test_what_crosses_a_boundary_is_as_wide_as_its_modules_make_it():
    models = [ModelConfig(), ModelConfig(boundary="resbm"), ModelConfig(boundary_width=9)]
    models.append(ModelConfig(boundary="projector", boundary_width=16))
    loads = [load_of(RunConfig(model=each), PlanOptions()) for each in models]
    tokens = RunConfig().batch.rows * ModelConfig().sequence_length

    assert [each.boundary_values / tokens for each in loads] == [128, 32, 128, 16]
    assert len({each.values_k.sum() for each in loads}) == 1


def test_sums_in_low_rank_cost_what_their_factors_have():
    raw, low, each, grid = (
        load_of(
            RunConfig(codecs=CodecConfig(averaging=name, averaging_rank=4)), PlanOptions()
        ).averaging_bytes_k
        for name in ("raw", "powersgd", ("raw", "powersgd"), "int-grid")
    )
    first = stage_blocks(RunConfig(), 0).stop

    assert low.sum() < grid.sum() / 4 < raw.sum() / 16
    assert np.array_equal(each[:first], raw[:first])
    assert np.array_equal(each[first:], low[first:])


def test_a_tied_tensor_takes_the_memory_of_both_ends():
    """A plan of two stages or more has it twice, as the servers will."""
    untied, tied = (
        load_of(RunConfig(model=ModelConfig(tie=tie)), PlanOptions()) for tie in (None, True)
    )

    assert tied.values_k.tolist() == untied.values_k.tolist()
    assert tied.whole_values(2) == untied.whole_values(2)


def test_a_stage_that_has_both_ends_has_a_tied_tensor_once():
    model = ModelConfig(tie=True)
    untied, tied = (
        load_of(RunConfig(model=each), PlanOptions()) for each in (ModelConfig(), model)
    )

    assert untied.whole_values(1) == untied.values_k.sum()
    assert tied.whole_values(1) == tied.values_k.sum() - model.vocabulary * model.d_model


@pytest.mark.parametrize(
    ("settings", "nbytes"),
    [
        ({}, 20),  # weights, two moments, the sum and its average
        ({"precision": "bf16"}, 22),  # and a copy of the matrices
        ({"precision": "bf16", "weight_storage": "bf16"}, 18),  # weights of two, and no copy
        ({"optimizer": OptimizerConfig(average_decay=0.9)}, 24),
        ({"model": ModelConfig(dtype="float64")}, 40),
        ({"delay": 1}, 32),  # the version before, the last update, another sum
        ({"delay": 1, "delay_correction": False}, 28),
        ({"delay": 1, "precision": "bf16"}, 36),  # each version has a copy
    ],
)
def test_a_plan_counts_the_memory_that_the_settings_take(settings, nbytes):
    assert held_bytes_per_value(RunConfig(**settings)) == nbytes


@pytest.mark.parametrize(("run", "status"), [("", 2), (LOW, 0)])
def test_a_model_that_fits_only_in_bfloat16_is_planned_only_so(tmp_path, capsys, run, status):
    """0.33 million parameters: 6.6 MB in float32, 5.9 MB in bfloat16, and machines of 6.2 MB."""
    small = HOME.replace("memory_gib = 4.0", "memory_gib = 5.775e-3").replace(
        "count = 1", "count = 2"
    )
    text = small + LINK.format("home") + "[plan]\nstages = [1]\nworking_gib = 0.0\n" + run + MODEL

    assert plan(tmp_path, text) == status
    assert ("the model's state is" in capsys.readouterr().err) is (status == 2)


def test_settings_of_a_plan_name_the_model_of_the_hub_for_servers_too(tmp_path, monkeypatch):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "vocab_size": 256}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": False}
    config = {"model_type": "llama"} | sizes | heads
    model = library_model(
        ModelConfig(family="hf:llama", config=config_text(config)), torch.bfloat16
    )
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    text = AWS + OREGON + '[run]\nmodel = "hf:some/model"\nstart = "pretrained"\n'
    with local_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.at("planner"))
        files = {"config.json": json.dumps(config).encode(), "model.safetensors": save(tensors)}
        commit = hub.publish("some/model", files)

        assert plan(tmp_path, text, "--out", str(tmp_path / "plan")) == 0

    run = load(tmp_path / "plan" / "run.toml").run
    servers = [load(file).serve for file in (tmp_path / "plan").glob("west*.toml")]
    assert run.model.hub == f"some/model@{commit}"
    assert len(servers) == 2
    assert all(serve.hub == run.model.hub for serve in servers)


def test_a_solver_that_is_not_installed_is_named_with_its_extra(tmp_path):
    """As after `pip install .`, which leaves the solvers out."""
    (tmp_path / "devices.toml").write_text((EXAMPLES / "devices.toml").read_text())
    missing = "raise ModuleNotFoundError('no ortools', name='ortools')"
    (tmp_path / "ortools.py").write_text(missing)
    root = Path(__file__).parents[3]

    done = subprocess.run(
        [sys.executable, "-m", "p2pswarm", "plan", "devices.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    needs = "the search of a plan needs ortools: pip install '.[plan]' in the clone of p2pswarm"
    assert done.stderr == f"error: {needs}\n"


def test_a_frozen_weight_takes_its_bytes_and_no_traffic():
    """With adapters: a third less work, the bytes of NF4, and sums of the factors alone."""
    model = ModelConfig(d_model=256, layers=4)
    whole = load_of(RunConfig(model=model), PlanOptions())
    run = resolved(RunConfig(model=model, base="nf4", adapter=AdapterConfig(rank=4)))
    load = load_of(run, PlanOptions())

    factors = 4 * ((256 + 768) + (256 + 256) + (256 + 1024) + (1024 + 256))
    layer = slice(1, 5)
    assert load.averaging_bytes_k[layer] == pytest.approx(4.0 * factors)
    assert not load.averaging_bytes_k[[0, -1]].any()
    assert load.flops_k == pytest.approx(whole.flops_k * 2 / 3)
    held = load.held_bytes_per_value * load.values_k[layer]
    matrices = 12 * 256 * 256 * 4.5 / 8
    assert held == pytest.approx(factors * load.held_bytes_per_value + matrices, rel=0.01)
