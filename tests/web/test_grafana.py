"""The board for Grafana and the table of metrics are as the metrics are."""

import json

from make_grafana import BOARD, PAGE, PANELS, asked, board, names, page


def test_every_question_names_metrics_that_there_are():
    for title, question, _ in PANELS:
        assert asked(question), title
        assert asked(question) <= names(), title


def test_the_board_and_the_table_are_as_they_are_made():
    assert json.loads(BOARD.read_text()) == board(), "python tests/make_grafana.py"
    assert PAGE.read_text() == page(), "python tests/make_grafana.py"
