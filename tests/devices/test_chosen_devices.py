"""Which devices a setting names, and which of them can share a stage."""

import pytest

from p2pswarm.devices.chosen_devices import devices_of
from p2pswarm.errors import Unusable


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("auto", ("auto",)),
        ("cpu", ("cpu",)),
        ("cuda:1", ("cuda:1",)),
        ("cuda:all", ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda:0, cuda:2", ("cuda:0", "cuda:2")),
        ("cpu,cpu", ("cpu", "cpu")),
    ],
)
def test_one_several_or_all(setting, names):
    assert devices_of(setting, gpus=3) == names


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("cuda:0,cuda:3", "torch sees 3 GPUs here, not 'cuda:3'"),
        ("cuda:1,cuda:1", "cuda:1 stands there twice"),
        ("cuda:0,cpu", "are of one kind"),
        ("cuda,cuda:1", "'cuda' cannot share a stage: write cuda:all"),
        ("auto,auto", "'auto' cannot share a stage"),
        ("cuda:0,", "'' cannot share a stage"),
        ("cuda:0,mps", "'mps' cannot share a stage"),
    ],
)
def test_what_cannot_share_a_stage_is_refused_with_the_reason(setting, why):
    with pytest.raises(Unusable, match=why):
        devices_of(setting, gpus=3)


def test_all_of_none_is_refused():
    with pytest.raises(Unusable, match="torch sees no GPU here"):
        devices_of("cuda:all", gpus=0)
