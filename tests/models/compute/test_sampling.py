"""Which tokens can be drawn, and how often."""

import math

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.models.compute.sampling import Sampling, drawn

CHANCES = (0.1, 0.4, 0.2, 0.3)
SCORES = torch.tensor([math.log(chance) for chance in CHANCES], dtype=torch.float64)


def found(draws: int = 400, **how: float) -> list[float]:
    """How often each token is drawn."""
    generator = torch.Generator().manual_seed(1)
    tokens = [drawn(SCORES, Sampling(**how), generator) for _ in range(draws)]
    return [tokens.count(token) / draws for token in range(len(CHANCES))]


def test_tokens_are_as_likely_as_the_model_says():
    assert found(4000, temperature=1.0) == pytest.approx(CHANCES, abs=0.03)


@pytest.mark.parametrize(
    ("how", "only"),
    [
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1e-9}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 9}, {0, 1, 2, 3}),
        ({"top_p": 0.0}, {1}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.69}, {1, 3}),
        ({"top_p": 0.71}, {1, 2, 3}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_p": 0.71, "top_k": 2}, {1, 3}),
    ],
)
def test_only_the_likeliest_are_drawn(how, only):
    often = found(**{"temperature": 1.0} | how)

    assert {token for token, share in enumerate(often) if share} == only


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("spoilt", [math.nan, math.inf, -math.inf])
def test_scores_that_are_no_numbers_are_one_line(temperature: float, spoilt: float):
    generator = torch.Generator().manual_seed(1)

    with pytest.raises(Unusable, match="its weights are spoilt"):
        drawn(torch.full((3,), spoilt), Sampling(temperature=temperature), generator)
