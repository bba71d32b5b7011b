"""Tests of `models/trainable.py`."""

import pytest
import torch
from models.harness import run_of
from torch import nn

from p2pswarm.base.errors import Unusable
from p2pswarm.models.base import Block
from p2pswarm.models.blocks import block_count, make_blocks
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.trainable import is_unset, unset


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_one_element_without_a_value_is_found(dtype):
    x = unset(torch.empty(3, dtype=dtype))
    assert is_unset(x)

    x[:2] = 0
    assert is_unset(x)
    x[2] = 0
    assert not is_unset(x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_of_numbers_that_may_all_occur_none_is_odd(dtype):
    assert not is_unset(unset(torch.empty(3, dtype=dtype)))


CPU = torch.device("cpu")


class Held(nn.Linear):
    """A layer that holds something besides."""

    def __init__(self, **held):
        super().__init__(3, 3)
        for name, value in held.items():
            setattr(self, name, value)


class Counting(nn.Linear):
    """A layer with a buffer that is stored."""

    def __init__(self):
        super().__init__(3, 3)
        self.register_buffer("count", torch.zeros(3))


def with_held(**make):
    return lambda: Held(**{name: each() for name, each in make.items()})


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (with_held(shift=lambda: torch.ones(3)), r"shift is a tensor, but no parameter"),
        (
            with_held(gain=lambda: torch.ones(3, device="cpu", requires_grad=True)),
            r"gain is a tensor, but no parameter",
        ),
        (with_held(parts=lambda: [nn.Linear(3, 3)]), "parts holds modules .*nn.ModuleList"),
        (with_held(parts=lambda: {"a": [nn.Linear(3, 3)]}), "parts holds modules"),
        (
            with_held(phase=lambda: nn.Parameter(torch.zeros(3, dtype=torch.complex64))),
            "phase is torch.complex64, and weights are real",
        ),
        (lambda: nn.BatchNorm1d(3), "track_running_stats=False"),
        (Counting, r"has the buffer count, .*register it with persistent=False"),
        (lambda: nn.utils.weight_norm(nn.Linear(3, 3)), "weight is a tensor, but no parameter"),
    ],
    ids=[
        "tensor",
        "tensor with a gradient",
        "list",
        "table",
        "complex",
        "batch norm",
        "buffer",
        "weight norm",
    ],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_what_a_server_would_lose_is_refused(make, match):
    with torch.device("meta"), pytest.raises(Unusable, match=match):
        make_blocks(run_of([make]), range(1))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: nn.LazyLinear(3), "weight has no size before a first forward"),
        (with_held(none=lambda: nn.Parameter(torch.ones(0, 3))), "none has no element"),
    ],
)
def test_a_parameter_without_a_size_is_refused_before_it_is_weighed(make, match):
    with pytest.raises(Unusable, match=match):
        block_count(run_of([make]).model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(3, 3),  # it has a list of its own parameters
        with_held(scale=lambda: 2.0, names=lambda: ["a", "b"]),
        with_held(table=lambda: torch.ones(3, device="cpu")),
        lambda: nn.BatchNorm1d(3, track_running_stats=False),
    ],
    ids=["parameters in a list", "plain values", "a constant on the processor", "batch norm"],
)
def test_what_is_known_or_constant_may_be_held(make):
    with torch.device("meta"):
        assert len(make_blocks(run_of([make]), range(1))) == 1


class Forgotten(Block):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def draw(self, generator):
        pass


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            with_held(gain=lambda: nn.Parameter(torch.ones(3))),
            r"nothing gives gain a first value: fill it in reset_parameters\(\) of Held",
        ),
        (Forgotten, r"nothing gives weight a first value: fill it in draw\(\)"),
    ],
)
def test_a_parameter_that_drawing_leaves_out_does_not_begin_with_zeros(make, match):
    flat = FlatParameters(run_of([make]), range(1), CPU)

    with pytest.raises(Unusable, match=match):
        flat.draw()
