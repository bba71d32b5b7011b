"""One exception for a group of tasks."""

from p2pswarm.base.errors import Busy, LinkLost
from p2pswarm.base.exception_group import cause_of


def test_the_first_of_our_errors_stands_for_the_group():
    first, second = LinkLost("a"), Busy("b")

    assert cause_of(ExceptionGroup("", [first, second])) is first


def test_a_bug_is_never_hidden_by_an_error_of_ours():
    bug = KeyError("a bug")
    inner = ExceptionGroup("", [Busy("b"), bug])

    assert cause_of(ExceptionGroup("", [LinkLost("a"), inner])) is bug
