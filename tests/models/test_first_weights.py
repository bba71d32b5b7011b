"""First weights: what they are, and that no processor and no cut into stages changes a bit."""

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from p2pswarm.models.blocks import block_count
from p2pswarm.models.compute.flat_parameters import FlatParameters
from p2pswarm.models.first_weights import CHUNK, PortableDraws, normals
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.tensors.codecs.base import bytes_of

CPU = torch.device("cpu")
NORMAL = NormalDist()
GPT_DIGEST = {
    "float32": "5784e67351f9500d97146b8ffb6285242f84a54eecf4273572e3da2e93397ff2",
    "float64": "b9003585472d7bf38ff4c459831b1849bd319e7a6b21fb2cc61a6a5b58c438dd",
}


def run_of(dtype="float32", seed=1):
    model = ModelConfig(d_model=32, layers=2, heads=2, sequence_length=8, dtype=dtype)
    return RunConfig(model=model, batch=BatchConfig(microbatches=1), seed=seed)


def gpt_digest(dtype):
    """The digest of the first weights of a small transformer."""
    run = run_of(dtype)
    flat = FlatParameters(run, range(block_count(run.model)), CPU)
    flat.draw()
    return hashlib.sha256(bytes_of(flat.params_N)).hexdigest()


def filled(draw, seed=1, number=0, shape=(100,)):
    block = nn.Linear(1, 1)
    tensor = torch.empty(shape, dtype=torch.float64)
    with PortableDraws(seed, number, block):
        draw(tensor)
    return tensor


@pytest.mark.parametrize("dtype", GPT_DIGEST)
def test_the_first_weights_are_these_on_every_machine(dtype):
    assert gpt_digest(dtype) == GPT_DIGEST[dtype]


def test_a_processor_without_vector_instructions_draws_the_same_bits():
    """Both libraries are told to use no instruction that an old processor lacks."""
    numpys = np._core._multiarray_umath
    usable = [name for name in numpys.__cpu_dispatch__ if numpys.__cpu_features__.get(name)]
    plain = {"ATEN_CPU_CAPABILITY": "default", "NPY_DISABLE_CPU_FEATURES": " ".join(usable)}
    script = "from models.test_first_weights import gpt_digest as g; print(g('float32'))"
    script += "; import sys; from p2pswarm.models.boundary import boundaries"
    script += "; from p2pswarm.settings.config import RunConfig; boundaries(RunConfig())"
    script += "; print('torch._dynamo' in sys.modules)"
    paths = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    there = os.environ | plain | {"PYTHONPATH": os.pathsep.join(paths)}

    other = subprocess.run(
        [sys.executable, "-c", script], env=there, check=True, capture_output=True, text=True
    )

    digest, compiles = other.stdout.split()
    assert digest == GPT_DIGEST["float32"]
    assert compiles == "False"  # torch's compiler takes a second to load, in every process


@given(st.integers(0, 2**52 - 1))
def test_a_normal_is_the_inverse_of_the_normal_distribution(k):
    p = (2 * k + 1) / 2**53

    (ours,) = normals(np.array([p]))

    assert ours == pytest.approx(NORMAL.inv_cdf(p), rel=2e-15, abs=1e-300)


@pytest.mark.parametrize("k", [0, 1, 2**30, 2**51 - 1])
def test_normals_are_symmetric_and_finite_at_the_ends(k):
    p = (2 * k + 1) / 2**53

    below, above = normals(np.array([p, 1.0 - p]))

    assert below == -above
    assert math.isfinite(below)
    assert below < 0


def test_what_is_drawn_has_the_mean_and_deviation_that_were_asked_for():
    values = filled(lambda x: x.normal_(3.0, 0.5), shape=(200, 1000))
    uniform = filled(lambda x: x.uniform_(-1.0, 3.0), shape=(200, 1000))

    assert values.mean() == pytest.approx(3.0, abs=0.01)
    assert values.std() == pytest.approx(0.5, abs=0.01)
    assert uniform.min() >= -1.0
    assert uniform.max() <= 3.0
    assert uniform.mean() == pytest.approx(1.0, abs=0.02)


def test_a_value_does_not_depend_on_how_many_follow():
    few = filled(lambda x: x.normal_(), shape=(10,))
    many = filled(lambda x: x.normal_(), shape=(CHUNK + 10,))

    assert torch.equal(few, many[:10])
    assert not torch.equal(many[:10], many[CHUNK:])


@pytest.mark.parametrize("other", [{"seed": 2}, {"number": 1}])
def test_another_seed_and_another_block_give_other_values(other):
    assert not torch.equal(filled(lambda x: x.normal_()), filled(lambda x: x.normal_(), **other))


def test_a_tensor_that_is_drawn_twice_gets_other_values_the_second_time():
    once = filled(lambda x: x.normal_())
    twice = filled(lambda x: x.normal_().normal_())

    assert not torch.equal(once, twice)


def test_parameters_draw_by_their_names_whatever_is_drawn_before():
    def drawn(names):
        block = nn.Linear(3, 4)
        with torch.no_grad(), PortableDraws(1, 0, block):
            for name in names:
                getattr(block, name).uniform_()
        return block

    one, other = drawn(["weight", "bias"]), drawn(["bias", "weight"])
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(5, 3),
        lambda: nn.Embedding(5, 3),
        lambda: nn.MultiheadAttention(4, 2),
        lambda: nn.LSTM(4, 3),
        lambda: nn.Conv1d(3, 4, 2),
    ],
)
def test_torchs_own_modules_draw_alike_whatever_torch_is_seeded_with(make):
    def drawn(seed):
        torch.manual_seed(seed)
        block = make()
        with PortableDraws(1, 0, block):
            for module in block.modules():
                reset = getattr(module, "reset_parameters", None)
                reset = reset or getattr(module, "_reset_parameters", lambda: None)
                reset()
        return list(block.parameters())

    assert all(torch.equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(3, 5),
        lambda: torch.randn(3, 5, dtype=torch.float64),
        lambda: torch.rand_like(torch.empty(4)),
        lambda: torch.randn_like(torch.empty(4)),
    ],
)
def test_a_tensor_that_is_made_of_chance_is_the_same_on_every_machine(make):
    block = nn.Linear(1, 1)  # its memory is not free while it draws

    def drawn(seed):
        torch.manual_seed(seed)
        with PortableDraws(1, 0, block):
            return make(), make()

    (one, second), (other, _) = drawn(1), drawn(2)

    assert torch.equal(one, other)
    assert not torch.equal(one, second)
    assert (one.dtype, one.shape) == (make().dtype, make().shape)
