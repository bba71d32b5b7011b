"""What a block's tensor group does where nothing is shared."""

import torch
from torch import nn

from p2pswarm.models.tensor_plan import ONE_DEVICE, Style


def test_one_device_exchanges_nothing():
    x, table = torch.ones(2, 3), nn.Embedding(5, 4)

    assert ONE_DEVICE.enter(x) is x
    assert ONE_DEVICE.leave(x) is x
    assert torch.equal(ONE_DEVICE.look_up(table, torch.tensor([[1]]), 5), table.weight[1:2][None])


def test_styles_are_called_as_the_library_calls_them():
    assert Style("colwise") is Style.COLWISE
    assert "rowwise" in set(Style)
