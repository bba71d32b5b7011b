"""The limit on open files: raised to what is wanted, and never lowered."""

import resource
from collections.abc import Iterator

import pytest

from p2pswarm.net.os.system_limits import raise_file_limit

FEW = 600  # more than the tests have open


@pytest.fixture
def few_files() -> Iterator[int]:
    """A soft limit of FEW; gives the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_the_limit_is_raised_to_what_is_wanted(few_files: int):
    assert raise_file_limit(FEW + 1) == soft_limit() == FEW + 1
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == few_files


@pytest.mark.usefixtures("few_files")
def test_a_limit_that_suffices_stays():
    assert raise_file_limit(10) == soft_limit() == FEW


def test_the_limit_is_raised_as_far_as_is_allowed(few_files: int):
    assert raise_file_limit(few_files + 1000) == soft_limit() == few_files
