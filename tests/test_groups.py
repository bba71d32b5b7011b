"""Tests that share what takes seconds to make are run by one worker."""

from pathlib import Path

from groups import GROUPS, GroupScheduling

HERE = Path(__file__).parent


def scope(test: str) -> str:
    scheduling = object.__new__(GroupScheduling)  # a real one needs workers
    return scheduling._split_scope(test)


def test_every_file_of_a_group_is_there():
    files = [file for files in GROUPS.values() for file in files]

    assert [file for file in files if not (HERE / file).is_file()] == []
    assert len(set(files)) == len(files)


def test_a_group_has_one_scope_and_every_other_test_its_own():
    first, second = (f"tests/{file}::test_a[b::c]" for file in GROUPS["syntax trees"])
    alone = [f"tests/base/test_ids.py::test_{name}" for name in "ab"]

    assert scope(first) == scope(second)
    assert [scope(test) for test in alone] == alone
