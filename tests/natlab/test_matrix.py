"""Real nodes behind real NATs: who reaches whom, and that nothing outlives the program.

Skipped where no lab may be opened; the reason is told.
"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from natlab.lab import LabUnavailable, NatLab, Site
from natlab.matrix import PathKind, path_of, rounds, summary, table
from natlab.picture import draw
from natlab.profiles import PROFILES

ROOT = Path(__file__).parents[2]
LAB = [sys.executable, "-m", "tests.natlab"]
RELAYS = ["11.1.0.1", "3ffe:1::1"]
END_S = 30


@pytest.fixture
def allowed():
    """Skips the test where no lab may be opened."""
    try:
        with NatLab([], public=1):
            pass
    except LabUnavailable as reason:
        pytest.skip(str(reason))


def site(name: str) -> Site:
    return Site(PROFILES[name], 9, (8,) if PROFILES[name].rules else (), "192.168.1.10", "11.9.0.1")


def descendants(pid: int) -> list[int]:
    """Every process that a process has started, and what those have started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def end(watched: list[int]) -> bool:
    """Wait for the end of processes: a descriptor of one that has ended is readable."""
    while watched:
        ended, _, _ = select.select(watched, [], [], END_S)
        if not ended:
            return False
        for pidfd in ended:
            watched.remove(pidfd)
            os.close(pidfd)
    return True


def rows_of(path: Path, *flags: str) -> dict[tuple[str, str], dict]:
    """What the lab, run by hand with these flags, writes of each pair."""
    quick = ["--settle-s", "0", "--limit-s", "6", "--upgrade-s", "0", "--json", str(path)]
    done = subprocess.run(
        [*LAB, *quick, *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a \\ b ")
    return {(row["a"], row["b"]): row for row in json.loads(path.read_text())}


@pytest.mark.usefixtures("allowed")
def test_nodes_reach_a_public_one_from_behind_a_symmetric_nat_and_say_how(tmp_path):
    rows = rows_of(tmp_path / "rows.json", "--profiles", "none,symmetric")

    assert len(rows) == 4
    for a in ("none", "symmetric"):
        row = rows[a, "none"]
        assert row["path"] == "direct", row
        assert row["seconds"] > 0
    # two random ports: nothing but a relay leads from one to the other
    assert rows["symmetric", "symmetric"]["path"] in {"no", "relayed"}


@pytest.mark.full
@pytest.mark.usefixtures("allowed")
def test_nodes_behind_symmetric_nats_reach_each_other_through_relays_that_they_name(tmp_path):
    rows = rows_of(tmp_path / "rows.json", "--profiles", "symmetric", "--relays", "2")

    assert rows["symmetric", "symmetric"]["path"] == "relayed", rows


@pytest.mark.usefixtures("allowed")
def test_node_of_the_command_line_is_reached_too(tmp_path):
    flags = ("--profiles", "none", "--delay-ms", "25", "--node", "--role bootstrap")

    rows = rows_of(tmp_path / "rows.json", *flags)

    assert rows["none", "none"]["path"] == "direct"
    assert rows["none", "none"]["seconds"] >= 2 * 0.025  # a round trip, if the other dialled first


@pytest.mark.parametrize(
    ("a", "b", "remote", "dialled", "kind"),
    [
        ("symmetric", "none", "11.9.0.1", True, PathKind.DIRECT),
        ("none", "symmetric", "11.9.0.1", False, PathKind.DIRECT),  # the other way round
        ("none", "full-cone", "11.9.0.1", True, PathKind.DIRECT),
        ("none", "upnp", "11.9.0.1", True, PathKind.MAPPED),
        ("none", "port-restricted", "11.9.0.1", True, PathKind.PUNCHED),
        ("port-restricted", "masquerade", "11.9.0.1", False, PathKind.PUNCHED),
        ("symmetric", "symmetric", "11.1.0.1", True, PathKind.RELAYED),
        ("ipv6", "none", "3ffe:1::1", True, PathKind.RELAYED),
    ],
)
def test_path_shows_in_where_the_link_ends_and_who_dialled(a, b, remote, dialled, kind):
    shown = {"remote": remote, "dialled": dialled, "says": None}

    assert path_of(shown, site(a), site(b), RELAYS) is kind


@pytest.mark.parametrize(
    ("b", "says", "kind"),
    [
        ("full-cone", "punched", PathKind.PUNCHED),
        ("symmetric", "relayed", PathKind.RELAYED),  # at a relay that is none of the lab's
        ("port-restricted", "direct", PathKind.DIRECT),
        ("upnp", "direct", PathKind.MAPPED),  # who dials a mapped port cannot know that it is one
        ("upnp", "punched", PathKind.PUNCHED),
    ],
)
def test_what_a_node_says_of_its_path_counts_before_what_can_be_seen(b, says, kind):
    shown = {"remote": "11.9.0.1", "dialled": True, "says": says}

    assert path_of(shown, site("none"), site(b), RELAYS) is kind


def test_table_tells_how_often_each_path_was_taken_and_the_median_time():
    def row(b: str, path: str, seconds: float | None) -> dict:
        return {"a": "none", "b": b, "path": path, "seconds": seconds}

    rows = [row("none", "direct", 0.5), row("none", "direct", 0.1), row("none", "direct", 0.3)]
    rows += [row("double", "relayed", 1.0), row("double", "no", None), row("double", "no", None)]

    shown = table(rows).splitlines()

    assert shown[0].split() == ["a", "\\", "b", "none", "double"]
    assert shown[1].split(maxsplit=1)[1] == "direct 3/3 0.30 s  relayed 1/3 1.00 s, no 2/3"


@pytest.mark.parametrize(("a", "b"), [("abc", "xyz"), ("abcd", "xy"), ("a", "xyz"), ("a", "x")])
def test_rounds_have_every_pair_once_and_no_site_twice_at_a_time(a, b):
    made = list(rounds(a, b))

    pairs = [pair for apart in made for pair in apart]
    assert sorted(pairs) == sorted((one, other) for one in a for other in b)
    for apart in made:
        assert len({one for one, _ in apart}) == len({other for _, other in apart}) == len(apart)


def test_summary_tells_how_fast_links_left_their_relay():
    def row(path: str, seconds: float, **more: object) -> dict:
        return {"a": "none", "b": "double", "path": path, "seconds": seconds, **more}

    first = {"path": "relayed", "seconds": 0.4}
    rows = [row("punched", 0.7, first=first), row("direct", 0.2), row("relayed", 0.5)]

    told = summary(rows).splitlines()

    assert told[0].startswith("without a relay: 2 of 3: p50 0.200 s, ")
    assert told[1].startswith("usable through a relay: 2 of 3: p50 0.400 s, ")
    assert told[2].endswith("p50 0.300 s")


def test_picture_names_every_profile_and_path(tmp_path):
    rows = [
        {"a": "none", "b": b, "path": path, "seconds": None}
        for b, path in (("double", "relayed"), ("upnp", "mapped"), ("ipv6", "no"))
    ]

    draw(rows, tmp_path / "drawn", "who reaches whom", "svg")

    text = (tmp_path / "drawn").read_text()
    assert all(f"<!-- {word} -->" in text for row in rows for word in (row["b"], row["path"]))


@pytest.mark.parametrize(
    "flags", [("--plot", "a.xyz"), ("--json", "/proc/none/a"), ("--node", "'")]
)
def test_wrong_flag_is_told_in_one_line_before_anything_begins(flags):
    done = subprocess.run(
        [*LAB, "--profiles", "none", *flags], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.full
@pytest.mark.usefixtures("allowed")
def test_ctrl_c_ends_every_process_and_shows_what_there_is():
    flags = ["--profiles", "none", "--tries", "1000", "--settle-s", "0"]
    with subprocess.Popen(
        [*LAB, *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as lab:
        told = next(line for line in lab.stderr if "->" in line)
        watched = [os.pidfd_open(pid) for pid in descendants(lab.pid)]

        lab.send_signal(signal.SIGINT)

        shown, complaints = lab.communicate(timeout=END_S)
        assert end(watched)
    assert told.startswith("none -> none: direct after ")
    assert lab.returncode == 130
    assert shown.startswith("a \\ b ")
    assert "Traceback" not in complaints


@pytest.mark.usefixtures("allowed")
def test_killing_the_lab_leaves_no_process():
    """SIGKILL gives it no chance; the emulator, which holds all namespaces, sees it end."""
    flags = ["--profiles", "none,symmetric", "--tries", "1000", "--settle-s", "0"]
    with subprocess.Popen([*LAB, *flags], cwd=ROOT, stderr=subprocess.PIPE, text=True) as lab:
        assert any("->" in line for line in lab.stderr)
        watched = [os.pidfd_open(pid) for pid in descendants(lab.pid)]
        assert len(watched) >= 5  # the emulator and the public nodes

        lab.send_signal(signal.SIGKILL)

        assert end(watched)


def test_unknown_profile_is_told_in_one_line_with_those_that_there_are():
    done = subprocess.run(
        [*LAB, "--profiles", "none,cone"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "'cone' is none of none, full-cone, " in done.stderr
    assert "Traceback" not in done.stderr
