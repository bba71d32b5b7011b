"""Settings that cannot be meant are refused."""

import pytest

from p2pswarm.discovery.dht.config import DhtConfig


def test_buckets_larger_than_a_message_are_refused():
    with pytest.raises(ValueError, match="k=21"):
        DhtConfig(k=21)


def test_more_successes_than_replicas_are_refused():
    with pytest.raises(ValueError, match="replicas_success=9"):
        DhtConfig(replicas_success=9)
