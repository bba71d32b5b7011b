"""What peers write cannot take over a terminal."""

import logging
import sys

import pytest

from p2pswarm.progress.printable import PrintableFormatter, log_to_stderr, printable

ESCAPES = "\x1b[2J\x1b]0;title\x07 fine\r\nforged line\u202e"


def test_what_moves_a_cursor_or_begins_a_line_becomes_a_question_mark():
    assert printable(ESCAPES) == "?[2J?]0;title? fine??forged line?"


@pytest.mark.parametrize("text", ["", "a b", "loss 1.5 é 模型 ✓"])
def test_what_is_printable_stays(text):
    assert printable(text) == text


def test_a_log_record_is_one_line_whatever_a_peer_said():
    record = logging.LogRecord("p2pswarm", logging.INFO, "", 0, "refused: %s", (ESCAPES,), None)

    line = PrintableFormatter("%(name)s: %(message)s").format(record)

    assert line == "p2pswarm: refused: ?[2J?]0;title? fine??forged line?"


def test_a_traceback_keeps_its_lines():
    try:
        [].pop()
    except IndexError:
        failure = sys.exc_info()
    record = logging.LogRecord("p2pswarm", logging.ERROR, "", 0, "failed", None, failure)

    assert len(PrintableFormatter("%(message)s").format(record).splitlines()) > 3


def test_logging_is_set_up_once_and_for_printable_lines():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    try:
        log_to_stderr("info")
        log_to_stderr("debug")

        (handler,) = root.handlers
        assert isinstance(handler.formatter, PrintableFormatter)
        assert root.level == logging.INFO
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
