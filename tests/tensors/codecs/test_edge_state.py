"""What codecs keep of an edge: never sent twice, never lost by a refusal, never growing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.tensors.codecs.base import TensorUse, Unencodable
from p2pswarm.tensors.codecs.bundle import BundleKey, BundleSpec
from p2pswarm.tensors.codecs.edge_codecs import edge_codecs
from p2pswarm.tensors.codecs.edge_state import EdgeState, EdgeStates
from p2pswarm.tensors.codecs.int8 import BLOCK_VALUES
from p2pswarm.tensors.codecs.meta import INLINE_BYTES_MAX, Dtype, TensorLayout, travels_alone
from p2pswarm.tensors.codecs.registry import (
    TensorToEncode,
    decoder,
    encode,
    encode_bundle,
    keeps_state,
)

CODEC = "int8-ef"
VALUES = BLOCK_VALUES + 44  # a whole block and a short one


def gradient(seed, dtype=torch.float64):
    return torch.randn(VALUES, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def received(encoded):
    place = decoder(encoded.meta)
    place.buffer[:] = encoded.data
    return place.finish()


def begun(edge, tensor):
    transfer = edge.start()
    (carried,) = transfer.carried
    return transfer, encode_bundle([TensorToEncode(tensor, CODEC, carried=carried)])


def total(edge):
    (carried,) = edge.carried
    return sum((each.double() for each in carried), torch.zeros(VALUES, dtype=torch.float64))


def half_step(x):
    """What one rounding may take off, for the largest value of all."""
    return x.abs().max().item() / 254 * 1.0001 + 1e-12


OUTCOMES = st.lists(st.sampled_from(["taken", "refused", "waits", "unknown"]), max_size=40)


@given(OUTCOMES, st.integers(0, 1000))
def test_what_a_peer_took_and_what_is_owed_is_what_was_computed(outcomes, seed):
    """Over any order of overlapping pushes; a push that is lost may cost what it carried, once."""
    edge = EdgeState(1)
    computed = torch.zeros(VALUES, dtype=torch.float64)
    came, lost = computed.clone(), computed.clone()
    waiting = []

    def end(outcome, tensor, transfer, encoded):
        if outcome == "taken":
            transfer.taken(encoded)
            computed.add_(tensor)
            came.add_(received(encoded[0]))
        elif outcome == "refused":
            transfer.refused()
        else:
            for each in transfer.carried[0]:
                lost.add_(each)

    for number, outcome in enumerate(outcomes):
        tensor = gradient(seed + number)
        push = (tensor, *begun(edge, tensor))
        if outcome == "waits":
            waiting.append(push)
        else:
            end(outcome, *push)
    for number, push in enumerate(waiting):
        end("refused" if number % 2 else "taken", *push)

    assert torch.allclose(came + total(edge) + lost, computed, rtol=1e-6, atol=1e-5)


@settings(max_examples=10)  # each is hundreds of pushes
@given(st.integers(0, 1000))
def test_what_is_owed_does_not_grow_with_the_number_of_pushes(seed):
    edge = EdgeState(1)
    for number in range(60):
        tensor = gradient(seed + number)
        transfer, encoded = begun(edge, tensor)
        sent = tensor + sum(transfer.carried[0], torch.zeros(VALUES))
        transfer.taken(encoded)

        assert total(edge).abs().max() <= half_step(sent)


def test_a_sum_with_feedback_stays_near_where_plain_rounding_drifts_away():
    edge = EdgeState(1)
    tensor = gradient(1)
    fed, plain = torch.zeros_like(tensor), torch.zeros_like(tensor)
    for _ in range(100):
        transfer, encoded = begun(edge, tensor)
        transfer.taken(encoded)
        fed += received(encoded[0])
        plain += received(encode(tensor, "int8"))

    assert (fed - 100 * tensor).abs().max() <= half_step(1.01 * tensor)
    assert (plain - 100 * tensor).abs().max() > 20 * half_step(tensor)


def test_a_push_that_overlaps_finds_nothing_carried():
    edge = EdgeState(1)
    transfer, encoded = begun(edge, gradient(1))
    transfer.taken(encoded)
    first = edge.start()

    assert len(first.carried[0]) == 1
    assert edge.start().carried == ((),)
    first.refused()
    first.refused()
    assert len(edge.carried[0]) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_first_tensor_of_an_edge_is_plain_int8(dtype):
    tensor = gradient(3, dtype)
    encoded = encode(tensor, CODEC)

    assert bytes(encoded.data) == bytes(encode(tensor, "int8").data)
    assert received(encoded).dtype == dtype


def test_what_cannot_be_told_leaves_the_tensor_alone():
    tensor = gradient(1)
    tensor[7] = float("nan")
    before = tensor.clone()

    with pytest.raises(Unencodable):
        encode(tensor, CODEC)
    tensor[7] = before[7] = 0.0
    begun(EdgeState(1), tensor)
    assert torch.equal(tensor, before)


def test_edges_to_incarnations_that_are_gone_are_dropped():
    states = EdgeStates(1)
    old, new, other = (b"p", 1), (b"p", 2), (b"q", 7)
    edge = states.edge(old, [old, other])
    edge.add([(torch.zeros(1),)])
    states.edge(other, [old, other])

    assert states.edge(old, []) is edge
    assert states.edge(new, [new, other]).carried == ((),)
    assert len(states) == 2
    assert states.edge(old, [old]).carried == ((),)


def test_a_bundle_is_inline_as_a_whole_or_not_at_all():
    small = [TensorToEncode(torch.zeros(9), "raw"), TensorToEncode(torch.ones(2, 2), CODEC)]
    large = [*small, TensorToEncode(torch.zeros(INLINE_BYTES_MAX), "raw")]

    assert not any(travels_alone(each.meta) for each in encode_bundle(small))
    assert all(travels_alone(each.meta) for each in encode_bundle(large))
    assert [each.left is not None for each in encode_bundle(large)] == [False, True, False]
    assert keeps_state(CODEC)
    assert not keeps_state("int8")


SPEC = BundleSpec(
    (
        BundleKey("x", TensorLayout(Dtype.FLOAT64, (1,)), differentiable=True),
        BundleKey("narrow", TensorLayout(Dtype.BFLOAT16, (1,)), differentiable=True),
        BundleKey("marks", TensorLayout(Dtype.INT64, (1,)), differentiable=False),
    )
)


def test_each_tensor_has_the_codec_of_its_key_and_whole_numbers_are_exact():
    chosen = {"x": "int8", "marks": "planes-zstd"}.get

    assert edge_codecs(SPEC, "bf16", chosen, TensorUse.ACTIVATION).names == (
        "int8",
        "raw",
        "planes-zstd",
    )
    assert edge_codecs(SPEC, "int8", {}.get, TensorUse.ACTIVATION).names == ("int8", "int8", "raw")


@pytest.mark.parametrize(
    ("name", "codec", "use", "match"),
    [
        ("marks", "int8", TensorUse.ACTIVATION, "does not take marks, which is INT64"),
        ("x", CODEC, TensorUse.ACTIVATION, "not fit for activation"),
        ("x", "gzip", TensorUse.GRADIENT, "no codec"),
    ],
)
def test_a_codec_that_cannot_carry_a_tensor_is_the_users_mistake(name, codec, use, match):
    with pytest.raises(Unusable, match=match):
        edge_codecs(SPEC, "raw", {name: codec}.get, use)
