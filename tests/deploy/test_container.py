"""The bootstrap image: built by buildah, run by podman, with the packages that it names alone."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.recipes import DEPLOY, ROOT

from p2pswarm.base.exit_codes import TERMINATED

IMAGE_BYTES_MAX = 60e6
PROGRAMS = ("buildah", "podman", "runc", "debootstrap")
BASE = os.environ.get("P2PSWARM_DEPLOY_BASE", "")
"""A folder with the root of a system that has python3 and pip; else debootstrap makes one."""
PACKAGES = "python3,python3-pip"
ONLY = """
import sys

class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if not (top in sys.stdlib_module_names or top in sys.argv[1].split(",") or top[0] == "_"):
            raise ModuleNotFoundError(f"{name} is left out", name=name)

sys.meta_path.insert(0, Only())
from p2pswarm.cli import main
sys.exit(main(sys.argv[2:]))
"""
"""Runs a command of ours where only these packages can be imported."""


def packages() -> list[str]:
    """What the image installs beside our own wheel."""
    lines = (DEPLOY / "container/bootstrap.txt").read_text().splitlines()
    return [re.split("[<>=]", line)[0] for line in lines if line and not line.startswith("#")]


def test_a_bootstrap_node_needs_no_other_package_than_its_image_has(tmp_path):
    names = {"markdown-it-py": "markdown_it"}
    there = ["p2pswarm", *(names.get(name, name) for name in packages())]
    words = ["node", "--role", "bootstrap", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", ONLY, ",".join(there), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as node:
        assert node.stdout is not None
        assert node.stderr is not None
        first = node.stdout.readline()
        node.send_signal(signal.SIGTERM)
        rest = node.stderr.read()

    assert first.startswith("peer "), rest
    assert node.returncode == TERMINATED
    assert "left out" not in rest


class Images:
    """Images and containers in folders of the test."""

    def __init__(self, folder: Path) -> None:
        self._flags = [
            *("--root", str(folder / "store"), "--runroot", str(folder / "run")),
            *("--storage-driver", "vfs"),
        ]

    def build(self, folder: Path, file: Path, name: str, **arguments: str) -> None:
        given = [f"--build-arg={key}={value}" for key, value in arguments.items()]
        words = ["bud", "--isolation", "chroot", "-q", *given, "-t", name, "-f", str(file)]
        self._run("buildah", *self._flags, *words, str(folder))

    def podman(self, *words: str) -> str:
        return self._run("podman", "--runtime", shutil.which("runc") or "", *self._flags, *words)

    def _run(self, *words: str) -> str:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Iterator[Images]:
    """The bootstrap image, built by its Containerfile on a Debian of this machine's mirror."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent or os.geteuid() != 0:
        pytest.skip(f"needs root, and apt install {' '.join(absent or PROGRAMS)}")
    folder = tmp_path_factory.mktemp("images")
    recipe = folder / "container"
    shutil.copytree(DEPLOY / "container", recipe)
    base = Path(BASE) if BASE else folder / "base"
    if not BASE:
        fetched("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "stable", str(base))
    pip = [sys.executable, "-m", "pip"]
    wheel = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(recipe / "wheel")]
    subprocess.run([*wheel, str(ROOT)], check=True)
    python = subprocess.run(
        ["chroot", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    only = ["--no-deps", "--only-binary=:all:", f"--python-version={python}"]
    needed = ["-d", str(recipe / "wheel"), "-r", str(recipe / "bootstrap.txt")]
    fetched(*pip, "download", "-q", *only, *needed)
    there = Images(folder)
    (folder / "base.Containerfile").write_text("FROM scratch\nCOPY . /\n")
    there.build(base, folder / "base.Containerfile", "base")
    there.build(
        recipe,
        recipe / "bootstrap.Containerfile",
        "bootstrap",
        BASE="localhost/base",
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS="/wheel",
    )
    yield there
    for name in ("base", "bootstrap"):
        there.podman("rmi", "--force", name)


def fetched(*words: str) -> None:
    """Run what fetches something; the test is skipped where nothing can be fetched."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{words[0]} could fetch nothing: {(done.stdout + done.stderr)[-200:]}")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_bootstrap_image_is_small(images):
    size = int(images.podman("image", "inspect", "bootstrap", "--format", "{{.Size}}"))

    print(f"bootstrap image: {size / 1e6:.1f} MB")
    assert size <= IMAGE_BYTES_MAX


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_bootstrap_image_runs_without_rights_and_leaves_when_it_is_stopped(images):
    hardened = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"]
    limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=2000:2000", "--stop-timeout=30"]
    images.podman(
        *("run", "--detach", "--name=node", "--network=host", *hardened, *limits, "bootstrap"),
        *("node", "--role=bootstrap", "--listen=:0", "--identity=/state/node.identity"),
    )
    try:
        while "peer " not in (said := images.podman("logs", "node")):
            assert images.podman("inspect", "node", "--format={{.State.Running}}") == "true", said
        inside = "import os; print(os.getuid(), oct(os.stat('/state/node.identity').st_mode))"
        assert images.podman("exec", "node", "/bin/python", "-c", inside) == "10001 0o100600"
        health = ("/bin/python", "-m", "p2pswarm", "health")
        assert images.podman("exec", "node", *health) == "ready: in the swarm"

        images.podman("stop", "node")

        code = images.podman("inspect", "node", "--format={{.State.ExitCode}}")
        assert int(code) == TERMINATED
        assert images.podman("logs", "node").endswith("leaving")
    finally:
        images.podman("rm", "--force", "node")
