"""A budget is told of twice, and money is written as people write it."""

import pytest

from p2pswarm.progress.budget import BudgetMark, SpendingLimit, money, per_million


def test_a_budget_is_near_at_80_percent_and_spent_at_100_each_once():
    budget = SpendingLimit(150.0)

    marks = [budget.on_cost(total) for total in (0.0, 119.9, 120.0, 130.0, 149.9, 150.0, 151.0)]

    assert marks == [None, None, BudgetMark.NEAR, None, None, BudgetMark.SPENT, None]


def test_a_budget_that_is_passed_at_once_is_spent_and_not_near():
    budget = SpendingLimit(10.0)

    assert [budget.on_cost(99.0), budget.on_cost(100.0)] == [BudgetMark.SPENT, None]


def test_without_a_budget_nothing_is_told():
    assert SpendingLimit(0.0).on_cost(1e9) is None


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (31.2, "USD", "$31.20"),
        (1234.5, "USD", "$1,234.50"),
        (0.0041, "USD", "$0.0041"),
        (0.0, "USD", "$0.00"),
        (31.2, "CHF", "31.20 CHF"),
    ],
)
def test_money_is_written_as_people_write_it(amount, currency, text):
    assert money(amount, currency) == text


def test_a_million_tokens_have_no_price_before_there_are_any():
    assert per_million(2.0, 4e6) == 0.5
    assert per_million(2.0, 0.0) is None
