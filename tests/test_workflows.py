"""Workflow files are what their runner reads, and give nobody more than it needs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
NOTED = re.compile(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def jobs_of(file: Path) -> dict[str, dict]:
    return yaml.safe_load(file.read_text())["jobs"]


def used(file: Path) -> list[str]:
    return [
        step["uses"] for job in jobs_of(file).values() for step in job["steps"] if "uses" in step
    ]


def test_there_is_a_release_workflow():
    assert "release" in [file.stem for file in FILES]


def test_workflows_are_what_the_schema_allows():
    """The schema comes with the library; nothing is fetched."""
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *FILES,
        ],
        check=False,
        capture_output=True,
        text=True,
    )

    assert checked.returncode == 0, checked.stdout + checked.stderr


@EACH
def test_actions_are_pinned_by_their_hash(file):
    lines = [line for line in file.read_text().splitlines() if "uses: " in line]

    assert [name for name in used(file) if not PINNED.fullmatch(name)] == []
    assert [line for line in lines if not NOTED.search(line)] == []


@EACH
def test_a_workflow_allows_nothing_that_a_job_does_not_name(file):
    workflow = yaml.safe_load(file.read_text())

    assert workflow["permissions"] in ({}, {"contents": "read"})


@EACH
def test_a_checkout_leaves_no_credentials(file):
    text = file.read_text()

    assert text.count("persist-credentials: false") == text.count("uses: actions/checkout@")


@EACH
def test_who_may_publish_runs_no_code_of_the_clone(file):
    """A job with an identity has no checkout and no command: only what was built before."""
    for name, job in jobs_of(file).items():
        if "id-token" in job.get("permissions", {}):
            steps = job["steps"]
            assert not [step for step in steps if "run" in step], name
            assert not [step for step in steps if "checkout" in step.get("uses", "")], name


def test_a_release_is_tried_before_it_is_published():
    """Trusted publishing wants a workflow of its own, and an environment for each index."""
    jobs = jobs_of(ROOT / ".github" / "workflows" / "release.yml")
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()

    assert [job.get("needs") for job in jobs.values()] == [None, "build", "attest", "testpypi"]
    assert [jobs[name]["environment"] for name in ("testpypi", "pypi")] == ["testpypi", "pypi"]
    assert "workflow_call" not in workflow
    assert "secrets." not in workflow
    assert "password" not in workflow


@EACH
def test_no_text_of_an_event_becomes_a_command(file):
    """A tag or a title may hold a command: it reaches a shell through the environment alone."""
    commands = [
        step["run"] for job in jobs_of(file).values() for step in job["steps"] if "run" in step
    ]

    assert [text for text in commands if "${{ github." in text] == []
