"""The losses of pairs, beside the papers' formulas as they stand there."""

import math

import pytest
import torch
from torch import Tensor

from p2pswarm.models.losses.preference import log_of_rest, log_probabilities, pair_losses
from p2pswarm.settings.objective import ObjectiveConfig

COUNTS = torch.tensor([3, 5, 2, 4])
BETA, GAMMA = 0.3, 0.7


def by_hand(name: str, scores: Tensor, labels: Tensor, references: Tensor) -> Tensor:
    """The mean of pairs, with probabilities instead of their logarithms where that can be."""
    p = scores.softmax(-1)
    sums = [
        sum(p[row, t, label].log() for t, label in enumerate(row_labels) if label >= 0)
        for row, row_labels in enumerate(labels.tolist())
    ]
    n = (labels >= 0).sum(1).tolist()
    losses = []
    for c, r in ((0, 1), (2, 3)):
        if name == "dpo":
            better, worse = sums[c] - references[c], sums[r] - references[r]
            losses.append(-(1 / (1 + (-BETA * (better - worse)).exp())).log())
        elif name == "simpo":
            gap = BETA / n[c] * sums[c] - BETA / n[r] * sums[r] - GAMMA
            losses.append(-(1 / (1 + (-gap).exp())).log())
        else:
            one, other = (sums[c] / n[c]).exp(), (sums[r] / n[r]).exp()
            ratio = (one / (1 - one)) / (other / (1 - other))
            losses.append(-one.log() - BETA * (1 / (1 + 1 / ratio)).log())
    return sum(losses) / 2


@pytest.mark.parametrize("name", ["dpo", "orpo", "simpo"])
def test_loss_and_gradient_are_those_of_the_papers(name: str):
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 6, 9, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 9, (4, 6), generator=generator)
    labels[torch.arange(6) >= COUNTS[:, None]] = -100
    references = -torch.rand(4, generator=generator, dtype=torch.float64) * 9
    config = ObjectiveConfig(name=name, beta=BETA, **({"gamma": GAMMA} if name == "simpo" else {}))

    sums = log_probabilities(scores, labels)
    losses, gains = pair_losses(config, sums, COUNTS, references if name == "dpo" else None)
    (gradient,) = torch.autograd.grad(losses.mean(), scores)

    expected = by_hand(name, scores, labels, references)
    (due,) = torch.autograd.grad(expected, scores)
    assert losses.mean().item() == pytest.approx(expected.item(), rel=1e-14)
    assert (gradient - due).norm() <= 1e-14 * due.norm()
    assert due.norm() > 0
    assert torch.equal(gains, sums - references if name == "dpo" else sums / COUNTS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_log_of_what_a_probability_leaves_is_finite_and_so_is_its_gradient(dtype):
    x = torch.tensor([0.0, -1e-9, -0.1, -math.log(2), -3.0, -700.0], dtype=dtype)
    x.requires_grad_()

    found = log_of_rest(x)
    found.sum().backward()

    assert found.isfinite().all()
    assert x.grad.isfinite().all()
    assert found[2:5].tolist() == pytest.approx([math.log1p(-math.exp(v)) for v in x[2:5].tolist()])
