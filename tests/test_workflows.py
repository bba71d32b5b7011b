"""Workflows run what is pinned by its hash, and may do no more than they say."""

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[1] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_each_action_is_pinned_by_its_hash_and_named_by_its_version(file: Path):
    used = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))

    assert used
    for each in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_job_has_the_rights_that_it_names(file: Path):
    text = file.read_text(encoding="utf-8")

    assert re.search(r"^permissions: \{\}", text, re.MULTILINE)
    assert "write-all" not in text
    assert text.count("persist-credentials: false") == text.count("uses: actions/checkout@")
