"""`p2pswarm plan`: what it prints and writes, and what it says of files that are no task."""

import json
import re

import pytest

from p2pswarm import cli

LINKS = {"latency_s": [[0, 0.1], [0.1, 0]], "gbps": [[0, 2], [2, 0]]}
TASK = {"stages": 2, "pipelines": 1, "gradient_gbit": 1, "activation_gbit": 4}


def plan(tmp_path, fields, *flags):
    """The command's exit code, on a file with these fields, or with this text."""
    matrix = tmp_path / "matrix.json"
    matrix.write_text(fields if isinstance(fields, str) else json.dumps(fields))
    return cli.main(["plan", "--matrix", str(matrix), "--seconds", "5", *flags])


def test_plan_is_printed_and_written_for_scripts(tmp_path, capsys):
    out = tmp_path / "plan.json"

    assert plan(tmp_path, {**LINKS, **TASK}, "--json", str(out)) == 0

    printed = capsys.readouterr().out
    assert printed.startswith("4.200 s an iteration; no plan costs less: proven\n")
    found = json.loads(out.read_text())
    assert sorted(found.pop("stages")) == [[0], [1]]
    assert found == {
        "seconds_per_step": pytest.approx(4.2),  # there and back, 100 ms and 2 s each
        "lower_bound": pytest.approx(4.2),
        "proven": True,
        "objective": "dtfm",
        "evaluations": 0,
    }


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("{", "is no JSON"),
        ("[1]", "is no JSON object"),
        ("[" * 100_000, "is no JSON"),
        ({**LINKS}, "has no stages: see p2pswarm plan --help"),
        ({**TASK, "latency_s": LINKS["latency_s"]}, "has no gbps"),
        ({**LINKS, **TASK, "stages": "two"}, "stages in .* is 'two': give a whole number"),
        ({**LINKS, **TASK, "stages": 10**9}, "asks for more than 4096 devices"),
        ({**LINKS, **TASK, "activation_gbit": None}, "has no activation_gbit"),
        ({**LINKS, **TASK, "gradient_gbit": []}, "gradient_gbit in .*: give a number"),
        ({**LINKS, **TASK, "gradient_gbit": 10**400}, r"gradient_gbit in .* 1000.*: too large"),
        ({**LINKS, **TASK, "latency_s": [[10**400, 1], [1, 0]]}, "latency_s has 2 rows of 2"),
        ({**LINKS, **TASK, "access_gbps": [10**400, 1]}, "access_gbps has 0 numbers"),
        ({**LINKS, **TASK, "gbps": 3}, "gbps in .* is no list"),
        ({**LINKS, **TASK, "gbps": [1, 2]}, "gbps has 2 rows of 0 numbers"),
        ({**LINKS, **TASK, "access_gbps": ["x", 1]}, "access_gbps"),
        ({**LINKS, **TASK, "stages": 3}, "3 devices, and the network has 2"),
    ],
)
def test_file_that_is_no_task_is_one_line_with_the_remedy(tmp_path, capsys, fields, says):
    code = plan(tmp_path, fields)

    error = capsys.readouterr().err
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert re.search(says, error)


def test_file_that_is_not_there_is_named(tmp_path, capsys):
    assert cli.main(["plan", "--matrix", str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read: No such file" in capsys.readouterr().err


def test_place_that_cannot_be_written_is_refused_before_the_search(tmp_path, capsys):
    assert plan(tmp_path, {**LINKS, **TASK}, "--json", str(tmp_path)) == 2
    assert "it is a folder" in capsys.readouterr().err
