"""Memory without a value is told from memory that has one."""

import pytest
import torch

from p2pswarm.models.unset import is_unset, unset


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
