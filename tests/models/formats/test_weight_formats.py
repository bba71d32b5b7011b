"""Formats keep weights as near as they say, and make the same bytes in any chunks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.models.formats import weight_formats
from p2pswarm.models.formats.weight_formats import (
    BF16,
    INT8,
    NF4,
    NF4_4BIT,
    PlainFormat,
    TensorCut,
)

SHAPES = [(1,), (64,), (65,), (3, 5), (7, 128), (2, 3, 33)]
EVERY = [PlainFormat(torch.float32), BF16, INT8, NF4_4BIT]


def packed(form, values: torch.Tensor) -> torch.Tensor:
    data = torch.zeros(form.size_bytes(values.shape), dtype=torch.uint8)
    form.pack(values, data)
    return data


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", EVERY)
def test_what_is_packed_comes_back_nearly(form, shape) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    again = form.unpack(packed(form, values), shape, torch.float32)

    assert again.shape == values.shape
    error = (again - values).norm() / values.norm()
    assert error <= {BF16: 0.004, INT8: 0.012, NF4_4BIT: 0.15}.get(form, 0.0)


def test_errors_of_normal_weights_are_the_published_ones() -> None:
    values = torch.randn(512, 512, generator=torch.Generator().manual_seed(1))
    for form, error in ((INT8, 0.0079), (NF4_4BIT, 0.092)):
        again = form.unpack(packed(form, values), values.shape, torch.float32)
        assert (again - values).norm() / values.norm() == pytest.approx(error, rel=0.1)


@pytest.mark.parametrize("form", [INT8, NF4_4BIT])
def test_zeros_stay_zeros(form) -> None:
    values = torch.zeros(4, 64)
    assert not form.unpack(packed(form, values), values.shape, torch.float32).any()


def test_a_bytes_first_value_is_in_its_high_half() -> None:
    values = torch.tensor(NF4 * 4)
    data = packed(NF4_4BIT, values)

    assert data[:4].tolist() == [0x01, 0x23, 0x45, 0x67]
    assert torch.equal(NF4_4BIT.unpack(data, (64,), torch.float32), values)


@given(st.integers(1, 400), st.integers(1, 3))
def test_chunks_change_no_byte(count: int, blocks: int) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count))
    whole = packed(NF4_4BIT, values)
    dense = NF4_4BIT.unpack(whole, (count,), torch.bfloat16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_formats, "CHUNK_BLOCKS", blocks)
        assert torch.equal(packed(NF4_4BIT, values), whole)
        assert torch.equal(NF4_4BIT.unpack(whole, (count,), torch.bfloat16), dense)


@pytest.mark.parametrize("form", [INT8, NF4_4BIT])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_bytes_depend_on_the_numbers_and_not_on_their_dtype(form, dtype) -> None:
    values = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(packed(form, values), packed(form, values.float()))


CUTS = [
    ((192,), TensorCut(0, ((64, 128),))),
    ((6, 128), TensorCut(-2, ((1, 2), (4, 6)))),
    ((3, 192), TensorCut(-1, ((64, 192),))),
    ((2, 4, 128), TensorCut(1, ((0, 1), (2, 3)))),
    ((2, 4, 128), TensorCut(-1, ((0, 64),))),
]


@pytest.mark.parametrize(("shape", "cut"), CUTS)
@pytest.mark.parametrize("form", EVERY)
def test_a_part_has_the_numbers_of_the_whole(form, shape, cut) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    data = packed(form, values)
    part = torch.zeros(form.size_bytes(cut.shape(shape)), dtype=torch.uint8)
    form.narrow(data, shape, cut, part)

    whole = form.unpack(data, shape, torch.float32)
    expected = torch.cat([whole.narrow(cut.dim, a, b - a) for a, b in cut.spans], cut.dim)
    assert torch.equal(form.unpack(part, cut.shape(shape), torch.float32), expected)


def test_a_cut_fits_where_scales_end() -> None:
    grain = NF4_4BIT.grain
    assert all(cut.fits(shape, grain) for shape, cut in CUTS)
    assert not TensorCut(-1, ((0, 32),)).fits((4, 128), grain)
    assert not TensorCut(0, ((0, 2),)).fits((4, 96), grain)
    assert TensorCut(-1, ((0, 32),)).fits((4, 96), INT8.grain)
