"""Orthogonal matrices: the same bits from any products that are exact, and near what they mean."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.compute.orthogonal import (
    FIFTH,
    FIRST,
    STEPS,
    THIRD,
    Products,
    float32_is_exact,
    iterated,
    orthogonal,
    peaked,
    place_of,
)

CPU = torch.device("cpu")
sizes = st.tuples(st.integers(1, 3), st.integers(1, 24), st.integers(1, 24))
shapes = st.sampled_from([(1, 1), (1, 40), (7, 9), (16, 64), (64, 64), (60, 130)])


def drawn(shape, seed, spread=0.0):
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=chance)
    return x * torch.exp(spread * torch.randn(shape[-1], generator=chance))


def with_values(values, shape, seed=1):
    """A matrix with these singular values."""
    chance = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, len(values), generator=chance))[0] for n in shape)
    return left * torch.tensor(values) @ right.mT


def alike(shape, seed):
    return torch.full(shape, 0.1 + seed)


def rank_one(shape, seed):
    return drawn((shape[0], 1), seed) @ drawn((1, shape[1]), seed + 1)


def one_huge(shape, seed):
    x = drawn(shape, seed)
    x[0, -1] = 1e6
    return x


def long_column(shape, seed):
    x = drawn(shape, seed)
    x[:, 0] *= 1e3
    return x


def at_the_edge(shape, seed):
    """Singular values that the polynomial takes to its largest value, all of them."""
    return with_values([0.556] * min(shape), shape, seed)


def close_to_a_half(shape, seed):
    """Each element is rounded the same way."""
    return drawn(shape, seed).sign() * (5.5 / (shape[0] * shape[1]) ** 0.5)


def cauchy(shape, seed):
    return drawn(shape, seed) / drawn(shape, seed + 1)


def few_rows(shape, seed):
    x = drawn(shape, seed)
    x[1:] *= 1e-4
    return x


KINDS = [
    drawn,
    alike,
    rank_one,
    one_huge,
    long_column,
    at_the_edge,
    close_to_a_half,
    cauchy,
    few_rows,
]


def done_by(dtype, x, **limits):
    """What becomes of a matrix by products of that dtype, and these."""
    x = peaked(x)
    products = Products(x, dtype, **limits)
    return iterated(x, products), products


@given(shapes, st.integers(0, 99), st.sampled_from(KINDS))
def test_float32_float64_and_whole_numbers_give_the_same_bits(shape, seed, kind):
    """int64 rounds nothing: so each sum was exact in float32, too."""
    x = kind(shape, seed)[None]

    found, products = done_by(torch.float32, x)

    assert found.dtype == torch.float32
    assert products.agree
    assert products.fit_B.all()
    assert torch.equal(found, done_by(torch.float64, x)[0])
    assert torch.equal(found, done_by(torch.int64, x)[0])


@given(shapes, st.integers(0, 99), st.sampled_from(KINDS))
def test_weights_in_float64_have_finer_factors_and_the_same_bits_too(shape, seed, kind):
    x = kind(shape, seed)[None].double()

    found, products = done_by(torch.float64, x)

    assert found.dtype == torch.float64
    assert products.agree
    assert products.fit_B.all()
    assert torch.equal(found, done_by(torch.int64, x)[0])
    assert torch.equal(found, orthogonal(x)) or shape[0] > shape[1]


@given(sizes, st.integers(0, 99), st.sampled_from([0.0, 1.0]))
def test_the_order_of_sums_does_not_change_a_bit(shape, seed, spread):
    """Columns in another order are added up in another order, and so are rows."""
    x = drawn(shape, seed, spread)
    chance = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=chance) for n in shape[1:])

    found = orthogonal(x)

    assert torch.equal(found[:, rows][:, :, columns], orthogonal(x[:, rows][:, :, columns]))
    assert torch.equal(found.mT, orthogonal(x.mT)) or shape[1] == shape[2]
    assert torch.equal(found[:1], orthogonal(x[:1]))


def test_half_of_a_large_symmetric_product_gives_the_bits_of_the_whole():
    class Whole(Products):
        def _symmetric(self, x, y):
            return self._product(x, y)

    x = peaked(drawn((1, 301, 310), 1))

    halved, whole = (iterated(x, kind(x, torch.float32)) for kind in (Products, Whole))

    assert torch.equal(halved, whole)


def allow_medium():
    torch.set_float32_matmul_precision("medium")


def allow_tf32():
    torch.backends.cuda.matmul.allow_tf32 = True


def allow_in_the_newer_way():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")


@pytest.fixture
def _restored():
    yield
    if NEWER:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    if NEWER:
        torch.backends.cuda.matmul.fp32_precision = "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize(
    "allow", [allow_medium, allow_tf32, *([allow_in_the_newer_way] if NEWER else [])]
)
def test_whoever_lets_torch_round_factors_gets_the_same_bits(allow):
    x = drawn((1, 70, 90), 1)
    plain = orthogonal(x)
    assert float32_is_exact(CPU)

    allow()

    assert not float32_is_exact(CPU)
    assert torch.equal(orthogonal(x), plain)


def test_autocast_gets_the_same_bits():
    x = drawn((1, 70, 90), 1)
    plain = orthogonal(x)

    with torch.autocast("cpu", torch.bfloat16):
        assert not float32_is_exact(CPU)
        assert torch.equal(orthogonal(x), plain)


@given(shapes.filter(lambda shape: shape[1] > 1), st.integers(0, 9))
def test_factors_that_are_rounded_unknown_to_torch_are_noticed(shape, seed):
    _, products = done_by(torch.bfloat16, drawn(shape, seed)[None])

    assert not products.agree


def test_a_matrix_whose_products_are_not_known_to_be_exact_is_only_scaled():
    x = torch.stack((drawn((6, 8), 1), torch.zeros(6, 8)))

    found, _ = done_by(torch.float32, x, longest=32)

    scale = torch.linalg.svdvals(x[0])[0] / torch.linalg.svdvals(found[0])[0]
    torch.testing.assert_close(found[0] * scale, x[0])
    assert 0.5 < torch.linalg.svdvals(found[0])[0] <= 1.0
    assert not found[1].any()


def test_half_a_million_elements_that_are_alike_keep_their_direction():
    """Their rounding errors are alike, too, and the steps diverge."""
    x = alike((1, 700, 740), 1)

    found, products = done_by(torch.float64, x)

    assert not products.fit_B.any()
    assert torch.equal(found, orthogonal(x))
    assert torch.equal(found, found[0, 0, 0].expand_as(found))
    assert 0.98 < torch.linalg.matrix_norm(found[0]) < 1.0


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e30])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 16, 16), (1, 24, 64), (1, 64, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_singular_values_become_about_one(shape, size, dtype):
    values = torch.linalg.svdvals(orthogonal(drawn(shape, 3).to(dtype) * size))

    assert values.max() < 1.25
    assert values.median() > 0.65


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 0.07), (torch.float64, 1e-3)])
@given(shapes, st.integers(0, 99), st.sampled_from([drawn, rank_one, long_column, cauchy]))
def test_it_is_nearly_what_the_polynomial_gives(dtype, most, shape, seed, kind):
    x = kind(shape, seed).to(dtype)
    exact = x.to(torch.float64)
    exact = exact / torch.linalg.matrix_norm(exact @ exact.mT).mul(1.02).sqrt()
    for _ in range(STEPS):
        a = exact @ exact.mT
        exact = FIRST * exact + (THIRD * a + FIFTH * a @ a) @ exact

    found = orthogonal(x[None])[0]

    off = torch.linalg.matrix_norm(found - exact) / torch.linalg.matrix_norm(exact)
    assert off < most


def test_small_singular_values_are_not_lost_in_rounding():
    """A hundred of them, a 300th of the largest: their directions survive."""
    x = with_values([1.0] + [1 / 300] * 99, (100, 400))
    left, _, right = torch.linalg.svd(x, full_matrices=False)

    kept = (left * (orthogonal(x[None])[0] @ right.mT)).sum(0)

    assert kept[1:].min() > 0.4


def test_weights_in_float64_forget_the_last_bits_of_sums():
    """So a run in which sums are added in another order makes the same weights to 1e-9."""
    x = drawn((1, 40, 60), 1).double() / 3
    added_otherwise = x * (1.0 + 4e-16 * drawn((1, 40, 60), 2).sign().double())

    assert not torch.equal(x, added_otherwise)
    assert torch.equal(orthogonal(x), orthogonal(added_otherwise))


def test_zeros_stay_zeros_beside_others():
    x = torch.stack((torch.zeros(4, 6), drawn((4, 6), 1), torch.full((4, 6), 1e-31)))

    found = orthogonal(x)

    assert not found[0].any()
    assert not found[2].any()
    assert torch.equal(found[1:2], orthogonal(x[1:2]))


def test_what_is_no_number_makes_its_own_matrix_none_and_no_other():
    x = drawn((3, 4, 6), 1)
    x[0, 0, 0], x[1, 0, 0] = torch.nan, torch.inf

    found = orthogonal(x)

    assert not found[:2].isfinite().all()
    assert torch.equal(found[2:], orthogonal(x[2:]))


@pytest.mark.parametrize(
    ("device", "place"), [("cpu", "cpu"), ("cuda:1", "cuda:1"), ("mps", "cpu"), ("xpu", "cpu")]
)
def test_only_where_float32_is_known_to_be_exact_are_matrices_computed(device, place):
    assert place_of(torch.device(device)) == torch.device(place)
