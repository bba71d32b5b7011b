"""Blocks that draw are left as they were after the held-out loss was measured."""

from torch import nn

from p2pswarm.models.dropout import nothing_drawn


def test_a_part_that_never_drops_still_does_not_after_a_measurement():
    frozen, live = nn.Dropout(0.5).eval(), nn.Dropout(0.5)
    block = nn.Sequential(frozen, live)

    with nothing_drawn([block]):
        assert not any(module.training for module in block.modules())

    assert [module.training for module in (block, frozen, live)] == [True, False, True]


def test_blocks_that_do_not_draw_stay_as_they_are():
    block = nn.Linear(2, 2)

    with nothing_drawn([block]):
        assert block.training
