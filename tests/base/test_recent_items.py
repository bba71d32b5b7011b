"""Tests of `base/recent_items.py`."""

from p2pswarm.base.recent_items import RecentItems


def test_the_oldest_makes_way_and_what_is_set_again_is_the_newest():
    kept: RecentItems[str, int] = RecentItems(2)
    kept["a"], kept["b"], kept["a"] = 1, 2, 3

    kept["c"] = 4

    assert list(kept.items()) == [("a", 3), ("c", 4)]
