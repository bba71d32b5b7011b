"""Tests of `base/bounded_dict.py`."""

from p2pswarm.base.bounded_dict import BoundedDict


def test_the_oldest_makes_way_and_what_is_set_again_is_the_newest():
    kept: BoundedDict[str, int] = BoundedDict(2)
    kept["a"], kept["b"], kept["a"] = 1, 2, 3

    kept["c"] = 4

    assert list(kept.items()) == [("a", 3), ("c", 4)]
