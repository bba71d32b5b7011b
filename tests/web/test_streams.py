"""The lines of a page and those who follow them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.web.streams import (
    KEPT_LINES,
    LINE_CHARS_MAX,
    QUEUE_LINES_MAX,
    VIEWERS_MAX,
    EventStreams,
    last_id,
    message,
)


def test_a_viewer_gets_each_line_once_and_in_order():
    streams = EventStreams()
    streams.on_line("before")
    viewer = streams.open()

    streams.on_line("a")
    streams.on_line("b")

    assert [(each.n, each.line) for each in viewer.drain()] == [(2, "a"), (3, "b")]
    assert viewer.drain() == []


def test_a_slow_viewer_is_dropped_and_comes_back_for_what_it_lacks():
    streams = EventStreams()
    viewer = streams.open()

    for number in range(QUEUE_LINES_MAX + 1):
        streams.on_line(str(number))
    streams.on_line("later")

    assert viewer.dropped
    assert viewer.drain() == []
    assert [each.line for each in streams.after(QUEUE_LINES_MAX)] == [str(QUEUE_LINES_MAX), "later"]


def test_there_are_so_many_viewers_and_a_place_that_is_left_is_free():
    streams = EventStreams()
    viewers = [streams.open() for _ in range(VIEWERS_MAX)]

    assert None not in viewers
    assert streams.open() is None
    streams.close(viewers[0])
    assert streams.open() is not None


def test_memory_is_bounded():
    streams = EventStreams()
    for number in range(2 * KEPT_LINES):
        streams.on_line(str(number))
    streams.on_line("x" * (LINE_CHARS_MAX + 1))

    kept = list(streams.after(0))

    assert len(kept) == KEPT_LINES
    assert kept[-1].line == str(2 * KEPT_LINES - 1)
    assert streams.n == 2 * KEPT_LINES + 1


def test_a_viewer_of_a_former_process_gets_all():
    streams = EventStreams()
    streams.on_line("first")

    assert [each.line for each in streams.after(9_999)] == ["first"]


def test_lines_that_are_left_out_are_a_gap_in_the_numbers():
    streams = EventStreams()
    streams.on_line("a")
    streams.on_gap(5)
    streams.on_line("b")

    assert [each.n for each in streams.after(0)] == [1, 7]


@pytest.mark.parametrize("header", ["", "-1", "1.5", "x", "٣", "9" * 19, "1\n2"])
def test_a_last_id_that_is_none_is_0(header):
    assert last_id(header) == 0


@given(st.integers(0, 10**18 - 1))
def test_a_number_is_read(n):
    assert last_id(str(n)) == n


def test_a_message_is_one_event():
    assert message("line", '{"a":1}', 7) == b'id: 7\nevent: line\ndata: {"a":1}\n\n'
    assert message("view", "{}") == b"event: view\ndata: {}\n\n"
