"""A stage's weights: snapshots, the averaging's view, what does not fit."""

import pytest
import torch

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.base import BackwardSpec, Update
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.run.averaging.shards import Span
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.tensors.state_tree import root_of

CPU = torch.device("cpu")
RUN = RunConfig(
    stages=1,
    model=ModelConfig(d_model=16, layers=1, heads=2, sequence_length=8),
    batch=BatchConfig(microbatches=1),
    codecs=CodecConfig(averaging="raw"),
)
TOKENS = torch.arange(18).view(2, 9)
ADD = BackwardSpec(counting=True, returning=False)


def engine():
    return torch_engine(RUN, 0, CPU, 1 << 20)


def digest_of(one):
    return root_of(one.weights.hashes())


def trained(steps, one):
    for number in range(steps):
        one.stage.finish(TOKENS, {}, ADD)
        digest = step(one, number + 1)
    return digest


def step(one, number):
    reduced = one.weights.reduction()
    reduced.reduce(Span(0, reduced.length), [None])
    one.weights.apply(reduced, Update(number, 1.0, 1e-2))
    return digest_of(one)


def test_pieces_carry_weights_and_optimizer():
    one, other = engine(), engine()
    one.weights.reset(draw=True)
    digest = trained(3, one)

    for piece in range(one.state.pieces):
        other.state.write(piece, [one.state.read(t, piece) for t in range(one.state.tensors)])

    assert digest_of(other) == digest
    one.stage.finish(TOKENS, {}, ADD)
    other.stage.finish(TOKENS, {}, ADD)
    assert step(one, 4) == step(other, 4)


@pytest.mark.parametrize("tensor", [0, 1, 2], ids=["weights", "first moment", "second moment"])
def test_the_digest_covers_weights_and_moments(tensor):
    one = engine()
    one.weights.reset(draw=True)
    digest = trained(1, one)

    one.weights._flat.state[tensor][7] += 1.0

    assert digest_of(one) != digest


def test_version_0_is_made_again_from_the_seed():
    one = engine()
    one.weights.reset(draw=True)
    first = digest_of(one)
    changed = trained(1, one)

    one.weights.reset(draw=False)
    assert digest_of(one) == changed != first
    one.weights.reset(draw=True)
    assert digest_of(one) == first


@pytest.mark.parametrize("shard", [torch.zeros(9), torch.zeros(10, dtype=torch.float64)])
def test_a_shard_of_another_shape_or_dtype_is_refused(shard):
    sums = TorchSums(torch.zeros(100), "raw")

    with pytest.raises(BadMessage, match="a shard of"):
        sums.place(Span(10, 20), shard)
    with pytest.raises(BadMessage, match="a shard of"):
        sums.reduce(Span(10, 20), [None, shard])


def test_a_lossy_codec_is_decoded_by_its_owner_too():
    values = torch.tensor([1.0 + 2.0**-12, 3.0])
    sums = TorchSums(values, "bf16")
    sums.reduce(Span(0, 2), [None])

    assert sums.reduced_N.tolist() == [1.0, 3.0]
    assert values[0] == 1.0 + 2.0**-12
