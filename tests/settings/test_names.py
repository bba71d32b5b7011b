"""What is answered to a setting that does not exist."""

import dataclasses
import types
import typing

import pytest

from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.names import EXPLAINED, RENAMED, unknown
from p2pswarm.settings.node_config import NodeConfig

TOP = sorted(field.name for field in dataclasses.fields(NodeConfig))
RUN = sorted(field.name for field in dataclasses.fields(RunConfig))


def every_name(kind: type) -> set[str]:
    names = set()
    for name, hint in typing.get_type_hints(kind).items():
        arms = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        names |= {name}.union(*map(every_name, filter(dataclasses.is_dataclass, arms)))
    return names


@pytest.mark.parametrize(
    ("table", "name", "answer"),
    [
        ("", "lr", "lr is no setting here: it is learning_rate in [run.optimizer]"),
        ("run", "lr", "run.lr is no setting here: it is learning_rate in [run.optimizer]"),
        ("", "model", "model is no setting here: it belongs at [run.model]"),
        ("", "train_data", "train_data is no setting here: it is data in [train]"),
        ("run", "max-steps", "run.max-steps is no setting here (did you mean steps?)"),
        ("run", "lora_alpha", "run.lora_alpha is no setting here: it is alpha in [run.adapter]"),
        ("run", "LR", "run.LR is no setting here: it is learning_rate in [run.optimizer]"),
    ],
)
def test_a_name_of_elsewhere_is_shown_its_place(table, name, answer):
    assert unknown(table, name, RUN if table else TOP) == answer


def test_a_setting_of_the_top_is_sent_there():
    answer = unknown("run", "role", RUN)

    assert answer == (
        "run.role is no setting here: it belongs at the top of the file, before any [table]"
    )


@pytest.mark.parametrize("name", ["batch_size", "epochs", "use_dora", "betas"])
def test_what_has_no_single_name_is_explained(name):
    assert unknown("", name, TOP) == f"{name} is no setting: {EXPLAINED[name]}"


def test_a_name_that_nobody_knows_gets_the_nearest_and_all_of_its_table():
    near, far = unknown("run", "stepps", RUN), unknown("run", "zzz", RUN)

    assert near.startswith(
        "run.stepps is no setting (did you mean steps?); there are: adapter, balance, base, "
    )
    assert far.startswith("run.zzz is no setting; there are: adapter, balance, base, ")


def test_every_alias_leads_to_a_setting_and_hides_none():
    ours = every_name(NodeConfig)

    assert set(RENAMED.values()) <= ours
    assert not (RENAMED.keys() | EXPLAINED.keys()) & ours


def test_a_strange_name_is_shown_on_one_line():
    assert unknown("", "a\nb", TOP).startswith("'a\\nb' is no setting")
    assert unknown("", "x" * 500, TOP).startswith("x" * 57 + "... is no setting")
