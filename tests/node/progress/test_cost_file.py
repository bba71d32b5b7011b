"""What a run has cost outlives its trainer's process."""

import dataclasses

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.cost_file import cost_file, read_cost, write_cost
from p2pswarm.run.messages.cost import Spent

RUN = bytes(range(16))
SPENT = Spent("EUR", trainer=1.5, invited=30.25, tokens=4e6, per_hour=1.83)


def test_what_was_written_is_read_again(tmp_path):
    path = cost_file(tmp_path, RUN)

    write_cost(path, SPENT)
    write_cost(path, dataclasses.replace(SPENT, trainer=2.0))

    assert read_cost(path) == dataclasses.replace(SPENT, trainer=2.0)


def test_a_run_that_cost_nothing_has_no_file(tmp_path):
    assert read_cost(cost_file(tmp_path, RUN)) is None


def test_a_sum_that_was_mended_by_hand_may_be_a_whole_number(tmp_path):
    path = cost_file(tmp_path, RUN)
    path.write_text('{"currency": "USD", "invited": 12}')

    assert read_cost(path) == Spent("USD", invited=12.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"currency": "usd"}',
        '{"currency": "USD", "trainer": -1.0}',
        '{"currency": "USD", "trainer": NaN}',
        '{"currency": "USD", "trainer": 1e300}',
        '{"currency": "USD", "trainer": "much"}',
        '{"currency": "USD", "trainer": true}',
        '{"currency": "USD", "more": 1.0}',
        '{"trainer": 1.0}',
        "[" * 4_000,
    ],
)
def test_a_file_that_is_none_is_one_line_with_a_remedy(tmp_path, text):
    path = cost_file(tmp_path, RUN)
    path.write_text(text)

    with pytest.raises(Unusable, match="move it away") as error:
        read_cost(path)

    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_huge_file_is_not_read(tmp_path):
    path = cost_file(tmp_path, RUN)
    path.write_bytes(bytes(1 << 20))

    with pytest.raises(Unusable):
        read_cost(path)
