"""The launchers' own checkers take the recipes, and name a mistake in one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.recipes import DEPLOY

TOOLS = os.environ.get("P2PSWARM_DEPLOY_TOOLS", "")
"""An environment of Python that has skypilot and kubernetes-validate: `tox -e deploy` makes one."""
SKYPILOT = """
import sys
from sky import Task
task = Task.from_yaml(sys.argv[1])
print(task.num_nodes, *(sorted({(one.use_spot, *one.ports) for one in task.resources})))
"""
UNIT = DEPLOY / "systemd/p2pswarm@.service"
PROGRAM = "/opt/p2pswarm/bin/p2pswarm"
EXPOSURE_MAX = 2.5  # of 10: systemd's own measure of what a service could do to its host


def tool(name: str, why: str) -> str:
    """Where a program is; the test is skipped without it."""
    there = shutil.which(name) or shutil.which(name, path=f"{TOOLS}/bin")
    if there is None:
        pytest.skip(f"{name} is missing: {why}")
    return there


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.fixture
def unit(tmp_path) -> Path:
    """The recipe's unit, whose program is one that is there."""
    file = tmp_path / "p2pswarm@a.service"
    file.write_text(UNIT.read_text().replace(PROGRAM, sys.executable))
    return file


def test_systemd_takes_the_unit(unit):
    systemd = tool("systemd-analyze", "apt install systemd")

    said = run(systemd, "verify", unit)

    assert (said.stdout, said.stderr) == ("", "")


def test_systemd_names_a_key_that_it_does_not_know(unit):
    systemd = tool("systemd-analyze", "apt install systemd")
    unit.write_text(unit.read_text().replace("RestartSec=", "RestartSecs="))

    assert "Unknown key 'RestartSecs'" in run(systemd, "verify", unit).stderr


def test_a_node_under_systemd_can_do_little_to_its_host(unit):
    systemd = tool("systemd-analyze", "apt install systemd")

    said = run(systemd, "security", "--offline=true", unit).stdout

    level = float(said.split("exposure level for")[1].split(":")[1].split()[0])
    assert 0.0 < level <= EXPOSURE_MAX


@pytest.mark.parametrize("file", sorted((DEPLOY / "kubernetes").glob("*.yaml")), ids=str)
def test_kubernetes_schemas_take_the_manifests(file, tmp_path):
    validate = tool("kubernetes-validate", "tox -e deploy")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(file.read_text().replace("metadata:", "metadatas:", 1))

    assert run(validate, "--strict", file).returncode == 0
    assert run(validate, "--strict", wrong).returncode != 0


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "task"), [("node.yaml", "1 (True, '4000')\n"), ("trainer.yaml", "1 (False, '4000')\n")]
)
def test_skypilots_own_parser_takes_the_tasks(name, task, tmp_path):
    """It reads no credentials, and asks no cloud. Its files go to a home of the test."""
    python = Path(TOOLS) / "bin/python"
    if not TOOLS or run(python, "-c", "import importlib.util as u; u.find_spec('sky').name").stderr:
        pytest.skip("skypilot is missing: tox -e deploy")
    for folder in ("skypilot", "home"):
        (tmp_path / folder).mkdir()
    recipe = tmp_path / "skypilot"
    shutil.copytree(DEPLOY / "skypilot", recipe, dirs_exist_ok=True)
    for folder in ("wheel", "text"):
        (recipe / folder).mkdir()
    wrong = recipe / "wrong.yaml"
    wrong.write_text((recipe / name).read_text().replace("use_spot", "use_spots"))

    good, bad = (
        subprocess.run(
            [python, "-c", SKYPILOT, file],
            check=False,
            capture_output=True,
            text=True,
            cwd=recipe,
            env={**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": ""},
        )
        for file in (name, wrong)
    )

    assert good.stdout.endswith(task), good.stderr
    assert bad.returncode != 0
    assert "use_spot" in bad.stderr
