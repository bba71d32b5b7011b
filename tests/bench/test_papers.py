"""`python bench/papers` for scripts: rows as objects, and traces of one's own."""

import json
import math
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
EVENTS = {"events": [[0, "+", 6], [600, "-", 2], [1200, "+", 3]], "seconds": 1800}
COUNTS = {"counts": [[0, 6], [600, 4], [1200, 7]], "seconds": 1800}


@pytest.fixture(scope="module")
def papers():
    """The tables, beside the modules that they import."""
    sys.path.insert(0, str(BENCH))
    try:
        from papers import tables  # noqa: PLC0415

        yield tables
    finally:
        sys.path.remove(str(BENCH))


def rows_of(papers, tmp_path, table: str, trace: dict) -> list[dict]:
    """What the command writes for a table under a trace."""
    given, out = tmp_path / "mine.json", tmp_path / "rows.json"
    given.write_text(json.dumps(trace))
    flags = ["--table", table, "--trace", str(given), "--json", str(out), "--seeds", "1"]
    assert papers.main(flags) == 0
    rows = json.loads(out.read_text())
    assert isinstance(rows, list)
    assert all(isinstance(row, dict) for row in rows)
    return rows


@pytest.mark.parametrize("trace", [EVENTS, COUNTS], ids=["events", "counts"])
def test_rebalancing_has_a_row_for_each_setting_and_rule_under_a_trace_of_ones_own(
    papers, tmp_path, capsys, trace
):
    rows = rows_of(papers, tmp_path, "rebalancing", trace)

    assert {row["trace"] for row in rows} == {"mine"}
    assert {row["rule"] for row in rows} == {"none", "swarm T=300", "swarm T=60", "priced"}
    assert len({(row["setting"], row["rule"]) for row in rows}) == len(rows) == 12
    assert all(0 < row["all"] <= 1 + 1e-9 for row in rows)
    assert len(capsys.readouterr().out.splitlines()) >= len(rows)


def test_events_and_counts_of_the_same_machines_have_the_same_rows(papers, tmp_path):
    by_events = rows_of(papers, tmp_path, "rebalancing", EVENTS)

    assert by_events == rows_of(papers, tmp_path, "rebalancing", COUNTS)


def test_oobleck_has_a_row_for_each_model_and_link(papers, tmp_path):
    rows = rows_of(papers, tmp_path, "oobleck", {"counts": [[0, 16], [900, 12]], "seconds": 1800})

    assert len({(row["model"], row["link_gbps"]) for row in rows}) == len(rows)
    assert {row["published_oobleck"] for row in rows} == {None}, "that trace is not theirs"
    assert all(row["own"] > 0 for row in rows)


@pytest.mark.parametrize("table", ["rebalancing", "oobleck"])
def test_a_trace_that_takes_everybody_has_rows_of_numbers(papers, tmp_path, table):
    rows = rows_of(papers, tmp_path, table, {"counts": [[0, 6], [300, 0]], "seconds": 600})

    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(math.isfinite(number) for number in numbers)


@pytest.mark.parametrize(
    ("flags", "trace", "says"),
    [
        (["--table", "dtfm"], COUNTS, "--trace is for the tables rebalancing and oobleck"),
        (["--table", "oobleck"], {"counts": [[0, 0], [60, 0]]}, "0 machines at the most"),
        (["--table", "oobleck"], {"events": [[0, "+", 1], [9, "-", 2]]}, "more go than came"),
        (["--table", "oobleck"], {"events": [[0, "x", 1]]}, "mine.json"),
        (["--table", "oobleck"], {}, "mine.json"),
        (["--table", "oobleck", "--seeds", "0"], COUNTS, "--seeds has to be 1 or more"),
        (["--table", "oobleck", "--json", "/no/such/rows"], COUNTS, "there is no folder"),
    ],
)
def test_what_cannot_be_a_table_is_said_in_a_line(papers, tmp_path, capsys, flags, trace, says):
    given = tmp_path / "mine.json"
    given.write_text(json.dumps(trace))

    with pytest.raises(SystemExit) as ended:
        papers.main([*flags, "--trace", str(given)])

    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert says in error
