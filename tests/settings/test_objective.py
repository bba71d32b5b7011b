"""Objectives: which there are, which are refused by name, and what goes with pairs."""

import pytest

from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import from_values, run_from_json, run_to_json

PAIRS = {"rows": 2, "samples": "whole"}


def run(**settings) -> RunConfig:
    return from_values(RunConfig, settings, "run")


@pytest.mark.parametrize(
    ("objective", "beta"),
    [
        ("dpo", 0.1),
        ("simpo", 2.0),
        ({"name": "orpo"}, 0.1),
        ({"name": "dpo", "beta": 0.3}, 0.3),
        ({"name": "simpo", "gamma": 0.0}, 2.0),
    ],
)
def test_an_objective_is_a_name_or_a_table_and_stands_in_the_manifest(objective, beta):
    found = run(objective=objective, batch=PAIRS)

    assert found.objective.prefers
    assert found.objective.strength == beta
    assert run_from_json(run_to_json(found)) == found
    assert found.share_of_pair == 1 / found.batch.microbatches
    assert not found.counts_targets
    assert run(batch={"samples": "whole"}).counts_targets


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"objective": "kto"}, r'run.objective: "kto" is not supported, it compares each answer'),
        ({"objective": "PPO"}, '"PPO" is not supported, it learns from answers that the model'),
        ({"objective": {"name": "grpo"}}, '"grpo" is not supported.*: choose dpo, orpo or simpo'),
        ({"objective": "dpoo"}, 'name is one of tokens, dpo, orpo, simpo, not "dpoo"'),
        ({"objective": {"beta": 0.1}}, "beta is for pairs"),
        ({"objective": {"name": "dpo", "gamma": 2.0}}, "gamma is of simpo"),
        ({"objective": {"name": "dpo", "beta": -1}}, "beta is a number from 0 to 1000"),
        ({"objective": "dpo", "batch": {"rows": 3}}, 'objective "dpo" takes pairs of rows'),
        ({"objective": "orpo", "batch": {"rows": 5_000}}, "even number of up to 4,096"),
        ({"objective": "dpo", "model": {"sequence_length": 9}}, "first 10 tokens"),
        ({"objective": "dpo", "emulated": True}, "a rehearsal computes no references"),
        ({"objective": "orpo", "model": {"router_loss": True}}, "weighed by targets"),
    ],
)
def test_what_cannot_be_is_one_line(settings, why):
    with pytest.raises(ValueError, match=why) as caught:
        run(**settings)

    assert "\n" not in str(caught.value)
