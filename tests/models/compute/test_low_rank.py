"""Gradients as two factors, against the formula on whole matrices."""

# ruff: noqa: N803, N806  shapes are written at the end of names

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, check_low_rank, layout_of
from p2pswarm.models.compute.low_rank import LowRank, low_rank_of
from p2pswarm.models.compute.optimizer import optimizer_of
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.models.compute.torch_weights import torch_engine
from p2pswarm.node.run.weights_file import model_size
from p2pswarm.run.averaging.shards import Span, pieces
from p2pswarm.settings.config import (
    BatchConfig,
    CodecConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
)
from p2pswarm.tensors.flat_layout import averaged_values, factor_shape, flat_layout, greatest_rank

CPU = torch.device("cpu")
SHAPES = (("norm", (24,)), ("a", (24, 40)), ("small", (8, 8)), ("experts", (3, 20, 30)))
RUN = RunConfig(
    stages=2,
    model=ModelConfig(d_model=24, layers=2, heads=2, sequence_length=8, dtype="float64"),
    batch=BatchConfig(microbatches=2),
    codecs=CodecConfig(averaging="powersgd", averaging_rank=4),
)
LAYOUT = flat_layout(
    ("float64",) * 3,
    [*SHAPES, ("factor.a", (4, 40)), ("factor.experts", (4, 30))],
)


def drawn(length, seed):
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gapless(x_N):
    """The same with zeros in the gaps and behind the parameters, as a sum has."""
    kept_N = torch.zeros_like(x_N)
    for tensor in LAYOUT.parameters:
        kept_N[tensor.start : tensor.stop] = x_N[tensor.start : tensor.stop]
    return kept_N


def warm_of(layout=LAYOUT, seed=5):
    warm_N = torch.zeros(layout.length, dtype=torch.float64)
    for factor in layout.factors.values():
        warm_N[factor.start : factor.stop] = drawn(factor.stop - factor.start, seed)
    return warm_N


def formula(gradient_MC, warm_RC):
    """By torch's own products and LAPACK: the projection on what the warm factor finds."""
    basis_MR = torch.linalg.qr(gradient_MC @ warm_RC.mT)[0]
    return basis_MR @ (basis_MR.mT @ gradient_MC)


def matrix_of(x_N, name):
    tensor = next(t for t in LAYOUT.tensors if t.name == name)
    return x_N[tensor.start : tensor.stop].view(-1, tensor.shape[-1])


@given(st.integers(0, 100))
def test_a_gradient_is_its_projection_on_what_the_warm_factor_finds(seed):
    warm_N, sum_N = warm_of(), gapless(drawn(LAYOUT.length, seed))
    whole_N = sum_N.clone()

    LowRank(1, LAYOUT, warm_N).reduce_whole(sum_N)

    for name in ("a", "experts"):
        expected = formula(matrix_of(whole_N, name), matrix_of(warm_N, f"factor.{name}"))
        assert (matrix_of(sum_N, name) - expected).abs().max() <= 1e-12
    for name in ("norm", "small"):
        assert torch.equal(matrix_of(sum_N, name), matrix_of(whole_N, name))


def test_the_next_warm_factor_has_the_directions_of_the_second_factor():
    warm_N, sum_N = warm_of(), gapless(drawn(LAYOUT.length, 1))
    gradient_MC, warm_RC = matrix_of(sum_N, "a").clone(), matrix_of(warm_N, "factor.a")
    basis_MR = torch.linalg.qr(gradient_MC @ warm_RC.mT)[0]

    LowRank(1, LAYOUT, warm_N).reduce_whole(sum_N)

    next_RC = matrix_of(sum_N, "factor.a")
    right_RC = basis_MR.mT @ gradient_MC
    along_R = (next_RC * right_RC).sum(1) / right_RC.norm(dim=1)
    assert (along_R.abs() - 1).abs().max() <= 1e-12
    assert (next_RC.norm(dim=1) - 1).abs().max() <= 1e-15


def test_the_same_gradient_again_and_again_is_found_whole():
    """The warm start is a power iteration: it turns to the strongest directions."""
    left, right = drawn(24 * 4, 1).view(24, 4), drawn(40 * 4, 2).view(4, 40)
    whole_N = torch.zeros(LAYOUT.length, dtype=torch.float64)
    matrix_of(whole_N, "a").copy_(left @ right + 0.01 * drawn(960, 3).view(24, 40))
    warm_N, missing = warm_of(), []
    for _ in range(4):
        sum_N = whole_N.clone()
        LowRank(1, LAYOUT, warm_N).reduce_whole(sum_N)
        missing.append((matrix_of(sum_N, "a") - matrix_of(whole_N, "a")).norm().item())
        warm_N = sum_N

    values = torch.linalg.svdvals(matrix_of(whole_N, "a"))
    assert missing[0] > missing[-1]
    assert missing[-1] <= 1.001 * values[4:].norm().item()


@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(0, 50))
def test_it_does_not_matter_who_counted_what(holders, seed):
    parts = [gapless(drawn(LAYOUT.length, 100 * seed + k)) for k in range(12)]
    whole_N, warm_N = sum(parts), warm_of()
    sums = [
        sum((p for p, h in zip(parts, holders, strict=True) if h == k), 0 * whole_N)
        for k in range(4)
    ]
    rules = LowRank(1, LAYOUT, warm_N)

    reduced_N = averaged(rules, sums)
    rules.reduce_whole(whole_N)

    assert (reduced_N - whole_N).abs().max() <= 1e-11 * whole_N.abs().max()


def averaged(rules, sums, members=4):
    """What two rounds make of the members' sums; every member has the same bytes."""
    reduced = [torch.full_like(x, 9.0) for x in sums]
    rounds = [
        TorchSums(x, "raw", reduced_N=r, low_rank=rules).rounds()
        for x, r in zip(sums, reduced, strict=True)
    ]
    for each in (  # the second is asked for when the first is in place
        made() for made in (lambda: [r.first for r in rounds], lambda: [r.second() for r in rounds])
    ):
        for piece in pieces(each[0].length, members, 64):
            others = [decoded(sums_, piece.span) for sums_ in each]
            others[piece.owner] = None
            encoded = each[piece.owner].reduce(piece.span, others)
            for sums_ in each:
                sums_.place(
                    piece.span, torch.frombuffer(bytearray(encoded.data), dtype=torch.float64)
                )
        outcomes = {sums_.outcome(b"k" * 16).digest for sums_ in each}
        assert len(outcomes) == 1
    assert all(torch.equal(reduced[0], r) for r in reduced)
    return reduced[0]


def decoded(sums, span):
    return torch.frombuffer(bytearray(sums.part(span).data), dtype=torch.float64)


def test_a_gradient_of_zeros_is_restored_as_zeros_and_the_factors_begin_anew():
    run = dataclasses.replace(RUN, stages=1)
    flat = FlatParameters(run, stage_blocks(run, 0), CPU)
    flat.draw()
    first_N = flat.exp_avg_N.clone()
    rules = low_rank_of(run, flat.layout, flat.exp_avg_N)

    rules.reduce_whole(flat.sum_N)

    assert flat.sum_N[rules.parameters].abs().max() == 0.0
    assert torch.equal(flat.sum_N[rules.parameters.stop :], first_N[rules.parameters.stop :])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["a", "norm"])
def test_what_is_not_finite_has_no_norm(value, name):
    sums = [gapless(drawn(LAYOUT.length, k)) for k in range(2)]
    tensor = next(t for t in LAYOUT.tensors if t.name == name)
    sums[0][tensor.start + 3] = value
    rounds = [TorchSums(x, "raw", low_rank=LowRank(1, LAYOUT, warm_of())).rounds() for x in sums]
    whole = Span(0, rounds[0].first.length)
    rounds[0].first.reduce(whole, [None, decoded(rounds[1].first, whole)])
    second = rounds[0].second()
    second.reduce(Span(0, second.length), [None])

    assert second.outcome(b"k" * 16).squared_norm is None


def test_a_newcomer_makes_no_factor_of_its_own():
    def fail(*_args):
        raise AssertionError("it has no sum")

    rules = LowRank(1, LAYOUT, warm_of())
    rules.first = rules.second = fail
    rounds = TorchSums(
        torch.zeros(LAYOUT.length, dtype=torch.float64), "raw", low_rank=rules
    ).rounds()
    rounds.first.place(Span(0, rounds.first.length), drawn(rounds.first.length, 1))
    second = rounds.second()
    second.place(Span(0, second.length), drawn(second.length, 2))

    assert second.outcome(b"k" * 16).squared_norm > 0


@pytest.mark.parametrize(
    ("shape", "rank", "factor"),
    [
        ((24,), 4, None),
        ((), 4, None),
        ((16, 16), 4, (4, 16)),
        ((16, 16), 5, None),
        ((3, 20, 30), 4, (4, 30)),
        ((64, 3, 3), 4, None),
        ((0, 8), 4, None),
    ],
)
def test_a_matrix_has_factors_where_they_halve_its_values(shape, rank, factor):
    assert factor_shape(shape, rank) == factor
    if factor:
        assert rank <= greatest_rank(shape)
        assert 2 * averaged_values(shape, rank) <= torch.empty(shape).numel()


def test_a_tied_tensor_and_vectors_go_as_they_are_in_every_cut():
    run = dataclasses.replace(RUN, model=dataclasses.replace(RUN.model, tie=True, vocabulary=512))
    cuts = [
        [
            layout_of(
                dataclasses.replace(run, stages=n),
                stage_blocks(dataclasses.replace(run, stages=n), s),
            )
            for s in range(n)
        ]
        for n in (1, 2, 4)
    ]
    named = [{name: f.shape for each in cut for name, f in each.factors.items()} for cut in cuts]

    assert named[0] == named[1] == named[2]
    assert len(named[0]) == 8
    assert "blocks.0.embedding" not in named[0]


def test_another_stage_has_no_factors_if_it_averages_otherwise():
    run = dataclasses.replace(
        RUN, codecs=dataclasses.replace(RUN.codecs, averaging=("raw", "powersgd"))
    )

    layouts = [layout_of(run, stage_blocks(run, stage)) for stage in range(2)]

    assert [bool(layout.factors) for layout in layouts] == [False, True]


def test_a_rank_that_pays_for_no_matrix_is_refused_with_the_greatest_that_does():
    def check(rank, **codecs):
        codecs = CodecConfig(averaging="powersgd", averaging_rank=rank, **codecs)
        check_low_rank(dataclasses.replace(RUN, codecs=codecs))

    check(8)
    with pytest.raises(Unusable, match=r"averaging_rank 32 would .* set it to 10 at most, or set"):
        check(32)
    tiny = dataclasses.replace(RUN.model, d_model=4, heads=2, layers=1)
    with pytest.raises(Unusable, match=r'would halve the bytes of no matrix .*averaging to "raw"'):
        check_low_rank(dataclasses.replace(RUN, model=tiny))


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_commit_in_pieces_keeps_the_next_factors_as_a_whole_one_does(name, delay):
    optimizer = OptimizerConfig(name=name, average_decay=0.9)
    run = dataclasses.replace(RUN, optimizer=optimizer, delay=delay)
    whole, pieced = (torch_engine(run, 1, CPU, 1 << 20, piece_values=200) for _ in range(2))
    for engine in (whole, pieced):
        engine.weights.reset(draw=True)
    update = Update(1, 0.5, 1e-2)
    reduced = TorchSums(drawn(whole.weights._flat.length, 3), "raw")
    reduced.reduce(Span(0, reduced.length), [None])

    whole.weights.apply(reduced, update)
    for piece in range(pieced.state.pieces):
        pieced.state.follow(piece, pieced.state.gradient(reduced, piece), update)

    assert whole.weights.hashes() == pieced.weights.hashes()
    flat = whole.weights._flat
    start = flat.layout.factors_start
    assert torch.equal(flat.exp_avg_N[start:], reduced.reduced_N[start:])
    for kind, x_N in flat.buffers.items():
        assert kind == "exp_avg." or x_N[start:].abs().max() == 0


def test_a_commit_without_a_gradient_keeps_the_factors():
    flat = FlatParameters(RUN, stage_blocks(RUN, 0), CPU)
    flat.draw()
    before_N = flat.exp_avg_N.clone()

    optimizer_of(RUN.optimizer, flat).step(drawn(flat.length, 1), Update(1, 0.0, 1e-2))

    assert torch.equal(flat.exp_avg_N, before_N)


def test_factors_are_no_parameters_of_the_model():
    raw = dataclasses.replace(RUN, codecs=CodecConfig(averaging="raw"))

    assert model_size(RUN).parameters == model_size(raw).parameters
