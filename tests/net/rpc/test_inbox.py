"""What came on a stream and was not read: in order, then how the stream ended."""

import pytest

from p2pswarm.base.errors import LinkLost
from p2pswarm.net.rpc.inbox import Inbox


def test_inbox_gives_what_came_in_order_and_then_the_end() -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.put(2)
    inbox.finish(None)

    assert [inbox.take(), inbox.take(), inbox.take(), inbox.take()] == [1, 2, None, None]


def test_inbox_gives_what_came_before_the_error() -> None:
    inbox = Inbox()
    inbox.put(1)
    inbox.finish(LinkLost("cut"))

    assert inbox.take() == 1
    with pytest.raises(LinkLost):
        inbox.take()


def test_first_end_of_an_inbox_stands() -> None:
    inbox = Inbox()
    inbox.finish(None)
    inbox.finish(LinkLost("too late"))

    assert inbox.take() is None


def test_inbox_is_ready_when_there_is_something_to_say() -> None:
    inbox = Inbox()
    assert not inbox.ready
    inbox.put(1)
    assert inbox.ready

    assert inbox.clear() == [1]
    assert not inbox.ready
    inbox.finish(None)
    assert inbox.ready
