"""A first node needs four small libraries, and a command that needs more says which."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from p2pswarm.base.exit_codes import TERMINATED
from p2pswarm.command_line import REQUIRED

ROOT = Path(__file__).parents[2]
SMALL = {"cryptography", "msgpack", "rich", "zstandard"}
"""What docs/install.md tells to install for a first node."""
THEIRS = {"cffi", "pycparser", "pygments", "markdown_it", "mdurl", "attr", "typing_extensions"}
PROGRAM = f"""
import sys

class Small:
    \"\"\"As in an environment that has nothing but these.\"\"\"

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = sys.stdlib_module_names | {SMALL | THEIRS | {"p2pswarm"}!r}
        if top not in known and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Small())
from p2pswarm.command_line import main
sys.exit(main(sys.argv[1:]))
"""


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)},
    )


def test_first_node_runs_with_few_libraries(tmp_path):
    """It leaves when its stdin ends, which is at once."""
    (tmp_path / "node.toml").write_text("leave_at_eof = true\n")

    done = run("node", "--config", "node.toml", "--listen", "127.0.0.1:0", folder=tmp_path)

    assert "others join it with" in done.stdout
    assert done.stderr == ""


def test_first_node_that_others_reach_asks_its_router_without_calls(tmp_path):
    """It listens at every address, as the image does: what finds out how others reach it runs."""
    words = ("node", "--listen", ":0", "--log-level", "info")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
    ) as node:
        assert node.stderr is not None
        said = next((line for line in node.stderr if "aiohttp" in line), "")
        node.terminate()
        node.stderr.read()

    assert said.endswith("no calls to routers by UPnP, which need aiohttp\n")
    assert node.returncode == TERMINATED


@pytest.mark.parametrize(
    ("command", "library"),
    [
        (("doctor", "--listen", "127.0.0.1:0"), "torch"),
        (("demo",), "matplotlib"),
        (("completion", "bash"), "shtab"),
        (
            (
                "node",
                "--role",
                "stage",
                "--bootstrap",
                "127.0.0.1:9",
                "--set",
                "serve.device=cuda:0",
            ),
            "torch",
        ),
    ],
)
def test_command_that_needs_more_says_so_in_one_line(command, library, tmp_path):
    done = run(*command, folder=tmp_path)

    assert done.returncode == 2
    assert done.stderr.endswith(f"needs {library}: pip install {library}\n")
    assert len(done.stderr.splitlines()) == 1


def test_report_is_made_without_them(tmp_path):
    done = run("report", folder=tmp_path)

    assert done.returncode == 0
    assert (tmp_path / "p2pswarm-report.zip").exists()


def test_libraries_that_may_lack_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {each.partition(">")[0] for each in project["dependencies"]}

    assert {name.replace("_", "-") for name in REQUIRED} | SMALL | {"shtab"} == named
    for name in SMALL:
        assert name in (ROOT / "docs" / "install.md").read_text()
