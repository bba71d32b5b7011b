"""`p2pswarm simulate`: files as users write them, what is told, and what is wrong in one line."""

import json
import math
from pathlib import Path

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.command_line import main, make_parser
from p2pswarm.commands.plan.devices import read_devices
from p2pswarm.commands.simulate.simulate import planned_day

RUN = """
role = "trainer"
[run]
stages = 2
[run.model]
d_model = 64
layers = 4
sequence_length = 64
[run.batch]
microbatches = 16
rows = 4
[checkpoint]
target = "checkpoints"
every_steps = 5
"""
DEVICES = """
network = "aws"
[[device]]
count = 3
tflops = 0.0001
memory_gib = 8
region = "Virginia"
[[device]]
count = 3
tflops = 0.0002
drift = 0.1
region = "Tokyo"
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "devices.toml").write_text(DEVICES)
    return tmp_path


def simulate(folder: Path, *more: str) -> int:
    return main(
        ["simulate", str(folder / "run.toml"), "--devices", str(folder / "devices.toml"), *more]
    )


def test_a_day_is_played_told_written_and_drawn(files: Path, capsys):
    out, plot = files / "day.json", files / "day.svg"
    code = simulate(
        files,
        *("--trace", "aws_g4dn", "--hours", "0.25", "--detail", "100"),
        *("--json", str(out), "--plot", str(plot)),
    )
    said = capsys.readouterr().out

    assert code == 0
    assert "6 machines at most, 2 stages, 0.25 hours, seed 1" in said
    assert "of what they could do at best" in said
    figures = json.loads(out.read_text())
    assert 0.2 < figures["share_of_optimum"] <= 1.0
    assert figures["machines"] == 6
    assert figures["steps"] > 0
    assert len(figures["series"]) > 10
    assert all(len(members) == 2 for _, members in figures["members"])
    assert plot.read_text().count("<svg") == 1


def test_the_shipped_examples_are_played(tmp_path: Path, capsys):
    """Their devices are in regions of a cloud, and in a house with links of its own."""
    for command in (["node", "--example", "trainer"], ["plan", "--example"]):
        assert main(command) == 0
        name = "run.toml" if command[0] == "node" else "devices.toml"
        (tmp_path / name).write_text(capsys.readouterr().out)

    code = simulate(tmp_path, "--trace", "aws_p3", "--hours", "0.05", "--detail", "100")

    assert code == 0
    assert "16 machines at most" in capsys.readouterr().out


@pytest.mark.full
def test_a_link_of_the_users_own_counts_as_the_networks_do(files: Path):
    def microbatches_per_s(rtt_ms: float) -> float:
        link = f'[[link]]\nbetween = ["Virginia", "{{}}"]\nrtt_ms = {rtt_ms}\ngbps = 1.0\n'
        own = DEVICES.replace('"Tokyo"', '"my house"') + link.format("my house")
        within = '[[link]]\nbetween = ["my house", "my house"]\nrtt_ms = 1\ngbps = 1.0\n'
        (files / "devices.toml").write_text(own + within)
        out = files / "day.json"
        assert simulate(files, "--hours", "0.1", "--detail", "100", "--json", str(out)) == 0
        return json.loads(out.read_text())["microbatches_per_s"]

    assert microbatches_per_s(1) > microbatches_per_s(20_000)


def test_averaging_takes_as_many_bytes_as_the_runs_codec_makes_of_it(files: Path):
    place = '"my house"'
    slow = f"[[link]]\nbetween = [{place}, {place}]\nrtt_ms = 1\ngbps = 0.004\n"
    own = DEVICES.replace('"Virginia"', place).replace('"Tokyo"', place)
    (files / "devices.toml").write_text(own.replace("0.000", "0.0") + slow)
    wide = RUN.replace("d_model = 64", "d_model = 512")

    def microbatches_per_s(averaging: str) -> float:
        (files / "run.toml").write_text(f'{wide}[run.codecs]\naveraging = "{averaging}"\n')
        out = files / "day.json"
        assert simulate(files, "--hours", "0.1", "--detail", "100", "--json", str(out)) == 0
        return json.loads(out.read_text())["microbatches_per_s"]

    assert microbatches_per_s("int-grid") > 1.05 * microbatches_per_s("raw")


@pytest.mark.full
def test_the_same_seed_plays_the_same_day(files: Path):
    def played(seed: str) -> object:
        out = files / "day.json"
        more = ("--trace", "aws_p3", "--hours", "0.04", "--detail", "100", "--json", str(out))
        assert simulate(files, *more, "--seed", seed) == 0
        figures = json.loads(out.read_text())
        return {name: value for name, value in figures.items() if name != "processor_s"}

    assert played("7") == played("7")
    assert played("7") != played("8")


@pytest.mark.full
def test_a_microbatch_stands_for_as_many_as_the_day_is_too_long_for(files: Path, capsys):
    out = files / "day.json"
    assert simulate(files, "--hours", "0.2", "--detail", "100", "--json", str(out)) == 0

    figures = json.loads(out.read_text())
    assert f"stands for {figures['bundled']} of the run's" in capsys.readouterr().out
    assert figures["bundled"] > 1
    assert figures["taken"] == 0
    assert figures["share_of_optimum"] > 0.3


def wrong(folder: Path, capsys, *more: str) -> str:
    """The one line on stderr."""
    assert simulate(folder, *more) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_what_cannot_be_played_is_one_line_with_the_remedy(files: Path, capsys):
    assert "no trace 'x'" in wrong(files, capsys, "--trace", "x")
    assert "no network 'mars'" in wrong(files, capsys, "--network", "mars")
    assert "no region 'Virginia'" in wrong(files, capsys, "--network", "gcp12")
    assert "no format for a picture" in wrong(files, capsys, "--plot", str(files / "day.doc"))
    (files / "nobody.json").write_text('{"counts": [[0, 1], [60, 0]]}')
    (files / "devices.toml").write_text("[[device]]\ntflops = 1\n")
    assert "lists 1 machines, and the run has 2 stages" in wrong(files, capsys)
    (files / "devices.toml").write_text("[[device]]\ntflops = 1\nmemory_gib = 0.001\ncount = 4\n")
    assert "the smallest stage needs" in wrong(files, capsys)
    (files / "devices.toml").write_text('[[device]]\ntflops = 1\nregion = "Tokyo"\ncount = 4\n')
    assert 'network = "aws"' in wrong(files, capsys)
    (files / "devices.toml").write_text("[[device]]\ntflops = 1\ncount = 2\n")
    (files / "few.json").write_text('{"counts": [[0, 2], [60, 1]], "seconds": 100000}')
    (files / "run.toml").write_text(RUN.replace("stages = 2", "stages = 3"))
    assert "lists 2 machines, and the run has 3 stages" in wrong(files, capsys)


def test_a_run_whose_record_has_no_room_is_refused_as_a_trainer_does(files: Path, capsys):
    (files / "run.toml").write_text(RUN.replace("microbatches = 16", "microbatches = 64_000"))

    said = wrong(files, capsys)

    assert "has a record with room for 0 servers, and the run begins with 2" in said
    assert "lower run.batch.microbatches" in said


def test_a_run_that_loses_its_weights_goes_back_to_its_checkpoint(files: Path, capsys):
    """Everybody is taken at once, and comes back."""
    trace = files / "all.json"
    trace.write_text('{"counts": [[0, 6], [500, 0], [560, 6]], "seconds": 100000}')
    out = files / "day.json"
    more = ("--trace", str(trace), "--hours", "0.4", "--detail", "150")

    assert simulate(files, *more, "--json", str(out)) == 0

    figures = json.loads(out.read_text())
    assert figures["weights_lost"] == 1
    assert figures["taken"] == 6
    assert any(hour > 0.3 for hour, _ in figures["members"]), "it trains again"
    assert "were done again from checkpoints" in capsys.readouterr().out


def test_a_run_without_checkpoints_is_over_then_and_says_what_to_set(files: Path, capsys):
    trace = files / "all.json"
    trace.write_text('{"counts": [[0, 6], [500, 0], [560, 6]], "seconds": 100000}')
    (files / "run.toml").write_text(RUN.partition("[checkpoint]")[0])

    assert simulate(files, "--trace", str(trace), "--hours", "0.4", "--detail", "150") == 0

    said = capsys.readouterr().out
    assert "set checkpoint.target and run.on_stage_lost" in said
    assert "nothing can train for 1 min, the first time after 8 min: the trace leaves" in said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "there is no [[device]]"),
        ("device = 3", "device is"),
        ("device = [3]", "device[0] is"),
        ("[[device]]\n", "device[0].tflops is missing"),
        ("[[device]]\ntflops = -1\n", "device[0].tflops is a number from"),
        ("[[device]]\ntflops = inf\n", "device[0].tflops is a number from"),
        ("[[device]]\ntflops = nan\n", "device[0].tflops is a number from"),
        ("[[device]]\ntflops = 1\ncount = 0\n", "device[0].count is a whole number"),
        ("[[device]]\ntflops = 1\nspeed = 2\n", "speed"),
        ("[[device]]\ntflops = 1\nregion = 2\n", "device[0].region is"),
        ("[[device]]\ntflops = 1\ndrift = 3\n", "device[0].drift is a number from 0 to 1"),
        ("servers = 3\n[[device]]\ntflops = 1\n", "servers"),
        ("[[device]]\ntflops = 1\ncount = 1100\n", "lists 1100 machines: simulate 1000"),
        ("[[", "not TOML"),
    ],
)
def test_what_lists_no_machines_is_one_line(files: Path, capsys, text: str, part: str):
    (files / "devices.toml").write_text(text)

    assert part in wrong(files, capsys)


def test_a_machine_of_which_only_the_speed_is_known_can_be_simulated(files: Path):
    given = read_devices(files / "devices.toml")

    assert [entry.tflops for entry in given.device for _ in range(entry.count)] == [
        *[0.0001] * 3,
        *[0.0002] * 3,
    ]
    assert given.device[0].memory_gib == 8.0
    assert math.isinf(given.device[1].memory_gib)
    assert (given.network, given.device[1].region) == ("aws", "Tokyo")


def test_frozen_weights_cost_a_backward_like_a_forward_their_memory_and_no_averaging(files: Path):
    whole = planned(files)
    text = RUN.replace("stages = 2", 'stages = 2\nbase = "nf4"\nadapter = { rank = 2 }')
    (files / "run.toml").write_text(text)
    adapted = planned(files)

    assert whole.day.cost.backward_share == pytest.approx(2.0)
    assert adapted.day.cost.backward_share == pytest.approx(1.0, abs=0.1)
    shares = [cost.gradient_bytes / cost.state_bytes for cost in (whole.day.cost, adapted.day.cost)]
    assert shares[0] == pytest.approx(shares[1], rel=0.1)  # both are of what trains
    assert whole.day.cost.gradient_bytes > 8 * adapted.day.cost.gradient_bytes
    assert adapted.day.run.adapter is None  # what is played has small tensors of its own
    (files / "run.toml").write_text(text.replace("d_model = 64", "d_model = 2048"))
    (files / "devices.toml").write_text(DEVICES.replace("memory_gib = 8", "memory_gib = 0.05"))
    with pytest.raises(Unusable, match=r"has 0\.05 GiB, and the smallest stage needs 0\.[1-9]"):
        planned(files)


def planned(files: Path):
    folder = str(files)
    flags = ["simulate", f"{folder}/run.toml", "--devices", f"{folder}/devices.toml"]
    asked = make_parser().parse_args([*flags, "--hours", "0.1", "--detail", "100"])
    return planned_day(asked)


def test_slow_links_carry_fewer_microbatches_so_each_stands_for_fewer(files: Path):
    """Else one would take a link for longer than a server may be silent, and all would be lost."""
    sites = ("Virginia", "Virginia"), ("Tokyo", "Tokyo"), ("Virginia", "Tokyo")
    quick = DEVICES.replace("0.0001", "0.5").replace("0.0002", "0.5")
    (files / "devices.toml").write_text(quick)
    by_computing = planned(files)
    link = '[[link]]\nbetween = ["{}", "{}"]\nrtt_ms = 40\ngbps = 0.002\n'
    (files / "devices.toml").write_text(quick + "".join(link.format(*pair) for pair in sites))

    by_links = planned(files)

    assert 1 < by_links.bundled < by_computing.bundled / 10
