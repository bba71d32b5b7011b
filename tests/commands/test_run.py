"""What a command answers, and its exit code, where no process has to live."""

import re

import pytest

from p2pswarm.command_line import main


def test_an_example_is_printed(capsys):
    assert main(["node", "--example", "stage"]) == 0
    assert 'role = "stage"' in capsys.readouterr().out


def test_a_check_prints_what_the_settings_mean(capsys, tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("role = 'stage'")

    assert main(["node", "--check"]) == 0
    assert capsys.readouterr().out.startswith("the flags: good\nrole ")
    assert main(["node", "--config", str(file), "--check"]) == 0
    assert re.match(rf"{file}: good\nrole +stage\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["node", "--config", "none.toml"], "none.toml: cannot be read"),
        (["node", "--listen", "4000", "--check"], "listen: '4000' is not HOST:PORT"),
        (["demo", "--json", "."], ". cannot be written: it is a folder"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_2(argv, part, capsys):
    assert main(argv) == 2

    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert part in said


def test_what_an_error_quotes_does_not_reach_the_terminal_as_it_is(capsys):
    assert main(["node", "--config", "\x1b[2J\n.toml"]) == 2

    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert said.count("\n") == 1
