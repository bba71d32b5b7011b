"""A node's own figures."""

import pytest

from p2pswarm.web.own_figures import SHARE_OVER_S, LinkBytes, ShareOfWork, Traffic


def test_bytes_of_links_that_have_ended_still_count():
    traffic = Traffic()
    traffic.on_links([LinkBytes(1, "direct", 10, 20), LinkBytes(2, "relayed", 5, 6)])
    traffic.on_links([LinkBytes(2, "direct", 8, 6)])
    traffic.on_links([LinkBytes(1, "direct", 7, 0)])

    assert traffic.sum_of("sent") == 10 + 8 + 7
    assert traffic.sum_of("received") == 20 + 6
    assert traffic.by_path() == {"direct": {"up": 20, "down": 20}, "relayed": {"up": 5, "down": 6}}


def test_a_share_is_of_what_the_steps_need():
    share = ShareOfWork()
    assert share.share(2.0, 8) is None

    for second in range(11):
        share.on_version(second // 2, float(second))

    assert share.share(2.0, 8) == pytest.approx(2.0 / (8 * 0.5))
    assert share.share(100.0, 8) == 1.0


def test_a_run_that_stands_still_or_is_another_has_no_share():
    share = ShareOfWork()
    share.on_version(10, 0.0)
    share.on_version(10, 5.0)
    assert share.share(1.0, 8) is None
    share.on_version(3, 6.0)
    share.on_version(4, 7.0)
    assert share.share(1.0, 1) == 1.0
    share.on_version(4, 8.0 + SHARE_OVER_S)
    assert share.share(1.0, 1) is None
    share.on_version(None, 9.0 + SHARE_OVER_S)
    assert share.share(1.0, 1) is None
