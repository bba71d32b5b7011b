"""`p2pswarm simulate`: files as users write them, what is told, and what is wrong in one line."""

import json
import math
from pathlib import Path

import pytest

from p2pswarm.commands.run import main
from p2pswarm.errors import Unusable
from p2pswarm.roles.device_list import read_devices

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
        *("--trace", "aws_g4dn", "--hours", "0.4", "--detail", "150"),
        *("--json", str(out), "--plot", str(plot)),
    )
    said = capsys.readouterr().out

    assert code == 0
    assert "6 machines at most, 2 stages, 0.4 hours, seed 1" in said
    assert "of what they could do at best" in said
    figures = json.loads(out.read_text())
    assert 0.2 < figures["share_of_optimum"] <= 1.0
    assert figures["machines"] == 6
    assert figures["steps"] > 0
    assert len(figures["series"]) > 10
    assert all(len(members) == 2 for _, members in figures["members"])
    assert plot.read_text().count("<svg") == 1


def test_the_same_seed_plays_the_same_day(files: Path):
    def played(seed: str) -> object:
        out = files / "day.json"
        more = ("--trace", "aws_p3", "--hours", "0.1", "--detail", "100", "--json", str(out))
        assert simulate(files, *more, "--seed", seed) == 0
        figures = json.loads(out.read_text())
        return {name: value for name, value in figures.items() if name != "processor_s"}

    assert played("7") == played("7")
    assert played("7") != played("8")


def test_a_microbatch_stands_for_as_many_as_the_day_is_too_long_for(files: Path, capsys):
    out = files / "day.json"
    assert simulate(files, "--hours", "0.5", "--detail", "100", "--json", str(out)) == 0

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
    (files / "devices.toml").write_text("[[device]]\ntflops = 1\nmemory_gib = 0.0001\ncount = 4\n")
    assert "the smallest stage needs" in wrong(files, capsys)
    (files / "devices.toml").write_text('[[device]]\ntflops = 1\nregion = "Tokyo"\ncount = 4\n')
    assert 'network = "aws"' in wrong(files, capsys)
    (files / "devices.toml").write_text("[[device]]\ntflops = 1\ncount = 2\n")
    (files / "few.json").write_text('{"counts": [[0, 2], [60, 1]], "seconds": 100000}')
    (files / "run.toml").write_text(RUN.replace("stages = 2", "stages = 3"))
    assert "lists 2 machines, and the run has 3 stages" in wrong(files, capsys)


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

    assert "set checkpoint.target and run.on_stage_lost" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "lists no machine"),
        ("device = 3", "lists no machine"),
        ("device = [3]", "write [[device]]"),
        ("[[device]]\n", "has no tflops"),
        ("[[device]]\ntflops = -1\n", "tflops -1 is not above 0"),
        ("[[device]]\ntflops = inf\n", "not above 0"),
        ("[[device]]\ntflops = nan\n", "not above 0"),
        ('[[device]]\ntflops = "8"\n', "is no number"),
        ("[[device]]\ntflops = 1\ncount = 0\n", "count 0 is not"),
        ("[[device]]\ntflops = 1\ncount = 100000\n", "is not a whole number"),
        ("[[device]]\ntflops = 1\nspeed = 2\n", "'speed' is unknown"),
        ("[[device]]\ntflops = 1\nregion = 2\n", "is no text"),
        ("[[device]]\ntflops = 1\ndrift = 3\n", "drift 3 is not above 0 to 1"),
        ("servers = 3\n[[device]]\ntflops = 1\n", "'servers' is unknown"),
        ("[[device]]\ntflops = 1\ncount = 900\n[[device]]\ntflops = 1\ncount = 900\n", "more than"),
        ("[[", "is no TOML"),
    ],
)
def test_what_lists_no_machines_is_one_line(tmp_path: Path, text: str, part: str):
    path = tmp_path / "devices.toml"
    path.write_text(text)

    with pytest.raises(Unusable) as caught:
        read_devices(path)

    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_has_every_machine_with_what_the_file_says_of_it(files: Path):
    listed = read_devices(files / "devices.toml")

    assert [device.tflops for device in listed.devices] == [0.0001] * 3 + [0.0002] * 3
    assert listed.devices[0].memory_gib == 8.0
    assert math.isinf(listed.devices[3].memory_gib)
    assert (listed.network, listed.devices[3].region) == ("aws", "Tokyo")
