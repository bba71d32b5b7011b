"""Training where nobody names a relay: the servers are behind NATs, and one public node is there.

Skipped where no lab may be opened; the reason is told.
"""

import json
import re
import sys
import time

import pytest

from natlab.lab import LabUnavailable, NatLab
from natlab.matrix import NODE, PORT, Program

START_S = 120.0  # torch on a very busy machine
ASK_AGAIN_S = 0.5
RUN = """
[train]
data = "{text}"
weights = ""

[run]
name = "homes"
stages = 2
steps = {steps}

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 4
rows = 2
"""
STEPS = 400
STATUS = (sys.executable, "-m", "p2pswarm", "status", "--json")
REACHED = re.compile(r"^reachable: (\S+) at (\S+)")


def line_with(program: Program, text: str) -> str:
    while text not in (line := program.line(START_S)):
        pass
    return line


def status_of(lab: NatLab, host: int, through: str) -> dict:
    asked = lab.run(host, [*STATUS, "--bootstrap", through], capture_output=True, text=True)
    assert asked.returncode == 0, asked.stderr
    return json.loads(asked.stdout)["runs"][0]


@pytest.fixture
def lab():
    try:
        with NatLab(["none", "symmetric", "masquerade-drop"], public=1) as opened:
            yield opened
    except LabUnavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.full
@pytest.mark.timeout(400)
def test_servers_behind_two_nats_train_and_status_shows_how_their_links_lead(lab, tmp_path):
    """One NAT has another port for each call, so nothing but the relay leads from one to both."""
    text, run_file = tmp_path / "text", tmp_path / "run.toml"
    text.mkdir()
    (text / "all.txt").write_text("To be, or not to be, that is the question. " * 400)
    run_file.write_text(RUN.format(text=text, steps=STEPS))
    through = f"{lab.address(0)}:{PORT}"
    public, *homes = lab.sites
    join = ("--bootstrap", through, "--listen", f":{PORT}")
    programs = [Program(lab, 0, [*NODE, "--role", "bootstrap", "--listen", f":{PORT}"])]
    try:
        programs[0].line(START_S)
        servers = [Program(lab, home.host, [*NODE, *join]) for home in homes]
        programs += servers
        for server in servers:
            found = REACHED.match(line_with(server, "reachable: "))
            assert found is not None
            assert (found[1], found[2].partition("/")[0]) == ("relayed", through)
        trainer = Program(
            lab, public.host, [*NODE, *join, "--role", "trainer", "--config", str(run_file)]
        )
        programs.append(trainer)
        line_with(trainer, "step ")

        links: dict[str, int] = {}
        until_s = time.monotonic() + START_S
        while sum(links.values()) < 4 and time.monotonic() < until_s:
            time.sleep(ASK_AGAIN_S)
            stages = status_of(lab, public.host, through)["status"]["stages"]
            links = {
                kind: sum(each["links"][kind] for each in stages) for kind in stages[0]["links"]
            }

        # each of the servers has one to the trainer, which it dialled, and one to the other server
        assert links["direct"] == 2, links
        assert links["relayed"] + links["punched"] == 2, links
        assert line_with(trainer, f"done after {STEPS} steps")
    finally:
        for program in reversed(programs):
            program.end()
