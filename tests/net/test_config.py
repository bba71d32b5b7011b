"""The transport's settings: what cannot work is refused when it is written down."""

import pytest

from p2pswarm.net.config import TransportConfig


def test_the_defaults_are_allowed():
    assert TransportConfig().bulk_connections == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"network_id": b"short"}, "16 bytes"),
        ({"bulk_connections": 0}, "not 0"),
        ({"bulk_connections_far": 17}, "not 17"),
    ],
)
def test_what_cannot_work_is_refused(settings, why):
    with pytest.raises(ValueError, match=why):
        TransportConfig(**settings)
