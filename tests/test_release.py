"""What is released: its metadata, its files, and that anybody can build the same bytes."""

import email
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

from p2pswarm.base.version import VERSION

ROOT = Path(__file__).parents[1]
URL = "https://example.org/someone/p2pswarm"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
IN_THE_BUILD = (
    *("README.md", "CHANGELOG.md", "ARCHITECTURE.md", "SECURITY.md", "LICENSE"),
    *("pyproject.toml", "hatch_build.py", ".gitignore"),
)


def module(path: str):
    """A file that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


hatch_build, check_release = module("hatch_build.py"), module(".ci/check_release.py")


def copied(folder: Path, age_s: float) -> Path:
    """The files that a build reads, as another clone has them: elsewhere, and of another time."""
    folder.mkdir()
    for name in IN_THE_BUILD:
        shutil.copy(ROOT / name, folder / name)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "p2pswarm", folder / "p2pswarm", ignore=ignored)
    when_s = time.time() - age_s
    for path in folder.rglob("*"):
        os.utime(path, (when_s, when_s))
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def build(source: Path, out: Path, *kinds: str) -> dict[str, bytes]:
    """The files that are built, by their suffix."""
    environment = {**os.environ, "P2PSWARM_SOURCE_URL": URL, "TZ": f"UTC{len(str(out)) % 12}"}
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, *kinds, source],
        check=True,
        capture_output=True,
        env=environment,
    )
    return {path.suffix: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("release")


@pytest.fixture(scope="module")
def built(folder):
    """Both files of one build; the wheel is made from the sdist."""
    return build(copied(folder / "clone", 0.0), folder / "dist")


@pytest.fixture(scope="module")
def wheel(built, folder):
    (path,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as zipped:
        yield zipped


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def test_two_builds_of_two_clones_are_the_same_bytes(built, folder):
    again = build(
        copied(folder / "another clone", 86_400.0), folder / "again", "--sdist", "--wheel"
    )

    digests = [
        {suffix: hashlib.sha256(data).hexdigest() for suffix, data in each.items()}
        for each in (built, again)
    ]
    assert set(digests[0]) == {".whl", ".gz"}
    assert digests[0] == digests[1]


def test_an_index_takes_what_is_built(built, folder):
    checked = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *(folder / "dist").iterdir()],
        check=False,
        capture_output=True,
        text=True,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_no_link_of_the_metadata_is_relative(metadata):
    links = LINK.findall(metadata.get_payload())

    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    assert f"{URL}/raw/v{VERSION}/docs/loss.png" in links
    assert f"{URL}/blob/v{VERSION}/docs/tutorial.md" in links


def test_links_of_the_metadata_lead_to_files_that_are_there(metadata):
    prefix = re.compile(rf"{re.escape(URL)}/(?:raw|blob)/v{re.escape(VERSION)}/([^#]+)")
    named = {
        found[1] for link in LINK.findall(metadata.get_payload()) if (found := prefix.match(link))
    }

    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_metadata_says_what_an_index_shows(metadata):
    kinds = set(metadata.get_all("Classifier"))
    addresses = dict(each.split(", ") for each in metadata.get_all("Project-URL"))

    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Author"] == "p2pswarm contributors"
    assert {"Typing :: Typed", "Programming Language :: Python :: 3.14"} <= kinds
    assert addresses["Source"] == URL
    assert set(metadata.get_all("Provides-Extra")) == {"all", "data", "fast", "hf", "plan"}


def test_all_is_every_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (every,) = extras.pop("all")

    assert every == f"p2pswarm[{','.join(sorted(extras))}]"


def test_wheel_has_the_package_and_nothing_else(wheel):
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "p2pswarm").rglob("*")
        if path.is_file() and path.parent.name != "__pycache__"
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert packed - there <= {hatch_build.COMMIT}
    assert there <= packed
    assert {"p2pswarm/py.typed", "p2pswarm/settings/examples/trainer.toml"} <= packed


def test_sdist_has_what_a_wheel_is_built_from(built, folder):
    (path,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(path) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}

    assert {*IN_THE_BUILD, "ORIGIN.json", "p2pswarm/cli.py"} <= names
    assert not [name for name in names if name.startswith(("tests", "bench", ".git/", "docs"))]


def test_version_is_answered_without_any_library(wheel, folder):
    """`-S`: no package but Python's own can be imported; `-X importtime` names each that is."""
    wheel.extractall(folder / "installed")
    (folder / "installed" / hatch_build.COMMIT).write_text("0123456789ab\n")
    command = "import sys; from p2pswarm.cli import main; sys.exit(main(['--version']))"

    answered = subprocess.run(
        [sys.executable, "-S", "-X", "importtime", "-c", command],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder / "installed",
        env={"PATH": os.environ["PATH"]},
    )

    ours = re.findall(r"\| +(p2pswarm\S*)$", answered.stderr, re.MULTILINE)
    assert answered.stdout == f"p2pswarm {VERSION} (0123456789ab)\n"
    assert set(ours) == {
        *("p2pswarm", "p2pswarm.base", "p2pswarm.base.exit_codes", "p2pswarm.base.version"),
        "p2pswarm.cli",
    }
    assert "argparse" not in answered.stderr


# The hook


def test_without_an_address_links_into_the_clone_are_text():
    text = "![a plot](docs/a.png) [page](docs/b.md#c), [there](https://example.org) [here](#part)"

    assert hatch_build.absolute(text, "", "1.0") == (
        " page, [there](https://example.org) [here](#part)"
    )


def test_a_clone_has_its_commit(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    (tmp_path / "a").write_text("a")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    whole = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)

    clean = hatch_build.commit(tmp_path)
    (tmp_path / "a").write_text("b")
    changed = hatch_build.commit(tmp_path)

    assert clean == whole.stdout[:12]
    assert changed == f"{clean}+"


def test_a_folder_inside_a_clone_has_no_commit(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "inside").mkdir()

    assert hatch_build.commit(tmp_path / "inside") == ""


def test_a_clone_that_git_cannot_read_has_no_commit(tmp_path):
    (tmp_path / ".git").write_text("gitdir: nowhere\n")

    assert hatch_build.commit(tmp_path) == ""


def test_an_sdist_keeps_where_it_came_from(tmp_path):
    kept = {"url": URL, "commit": "0123456789ab"}
    (tmp_path / hatch_build.ORIGIN).write_text(json.dumps(kept))

    assert hatch_build.origin(tmp_path) == kept


# Tag, version, changelog


def test_this_clone_can_be_released():
    said = subprocess.run(
        ["git", "-C", ROOT, "tag", "--points-at", "HEAD", "v*"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    changelog = (ROOT / "CHANGELOG.md").read_text()

    assert [check_release.problems(tag, VERSION, changelog) for tag in said or [""]] == [[]]


@pytest.mark.parametrize(
    ("tag", "heading", "number"),
    [
        ("v1.2.0", "1.2.0", 0),
        ("v1.2.0", "[1.2.0] - 2026-11-28", 0),
        ("", "1.2.0", 0),
        ("", "Unreleased", 0),
        ("", "1.1.0", 1),
        ("v1.2.0", "Unreleased", 1),
        ("v1.2.1", "1.2.0", 1),
        ("v1.2.1", "1.2.1", 2),
        ("1.2.0", "1.2.0", 1),
    ],
)
def test_a_release_has_one_version(tag, heading, number):
    found = check_release.problems(tag, "1.2.0", f"# Changelog\n\n## {heading}\n\n## 0.9.0\n")

    assert len(found) == number
