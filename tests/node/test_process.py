"""A node as a process: what can be told without one. The rest is in tests/procs."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from p2pswarm.node.process import load_role


class _Knot:
    """Garbage that only a search finds: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    """Leave no frozen object to other tests."""
    yield
    gc.unfreeze()


def test_what_a_role_has_imported_is_not_searched_for_garbage_again() -> None:
    """A full search among the objects of torch stops the event loop for a tenth of a second."""
    module = load_role("bootstrap")

    searched = {id(each) for each in gc.get_objects()}
    assert id(vars(module)) not in searched
    assert gc.get_freeze_count() > 0


def test_garbage_made_later_is_still_found() -> None:
    load_role("bootstrap")
    knot = weakref.ref(_Knot())

    gc.collect()

    assert knot() is None
