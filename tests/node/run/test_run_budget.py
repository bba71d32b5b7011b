"""What a run had cost before its trainer began, and budgets that let it begin."""

from dataclasses import replace

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.node.progress.cost_file import cost_file, write_cost
from p2pswarm.node.run.run_budget import check_budget, spent_before
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.train_config import TrainConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

OLD, NEW = b"o" * 16, b"n" * 16
SAVED = Spent("USD", invited=10.0)
RESUMED = ResumedFrom(RunOrigin(OLD, 100, b"d" * 32), "checkpoints", "one", SAVED)


def test_a_first_run_has_cost_nothing(tmp_path):
    assert spent_before(None, None, None) is None
    assert spent_before(tmp_path, NEW, None) is None


def test_a_checkpoint_says_what_the_run_had_cost():
    assert spent_before(None, NEW, RESUMED) == SAVED


def test_a_machine_that_knows_of_more_than_the_checkpoint_says_that(tmp_path):
    more = replace(SAVED, invited=12.5)
    write_cost(cost_file(tmp_path, OLD), more)

    assert spent_before(tmp_path, NEW, RESUMED) == more


def test_a_run_that_goes_on_in_its_folder_has_the_sums_there(tmp_path):
    write_cost(cost_file(tmp_path, NEW), SAVED)

    assert spent_before(tmp_path, NEW, None) == SAVED


def test_a_new_run_from_anothers_weights_begins_with_nothing(tmp_path):
    write_cost(cost_file(tmp_path, OLD), SAVED)
    anew = replace(RESUMED, origin=replace(RESUMED.origin, anew=True))

    assert spent_before(tmp_path, NEW, anew) is None


@pytest.mark.parametrize(
    ("budget", "allowed"), [(0.0, True), (10.01, True), (10.0, False), (5, False)]
)
def test_a_budget_has_something_left(budget, allowed):
    train = TrainConfig(budget=budget)
    if allowed:
        check_budget(train, SAVED)
        return

    with pytest.raises(Unusable, match=r"^train\.budget is \$.*the run has cost \$10\.00 so far"):
        check_budget(train, SAVED)


def test_sums_in_another_currency_are_not_added_to():
    with pytest.raises(Unusable, match='set it to "USD"'):
        check_budget(TrainConfig(currency="EUR"), SAVED)


def test_a_run_that_has_cost_nothing_may_have_any_budget():
    check_budget(TrainConfig(budget=1.0), None)
