"""What a node says of itself on its page."""

import pytest

from p2pswarm.base.ids import Address
from p2pswarm.node.stack.node_page import NodePage
from p2pswarm.settings.node_config import NodeConfig, ServeConfig
from p2pswarm.settings.train_config import TrainConfig
from p2pswarm.web.health import NodeHealth
from p2pswarm.web.run_page import RunPage


@pytest.mark.parametrize(
    ("config", "price"),
    [
        (NodeConfig(role="stage", serve=ServeConfig(price_per_hour=0.35)), (0.35, "USD")),
        (
            NodeConfig(role="trainer", train=TrainConfig(price_per_hour=0.2, currency="EUR")),
            (0.2, "EUR"),
        ),
        (NodeConfig(role="stage"), (None, None)),
        (NodeConfig(role="bootstrap"), (None, None)),
    ],
)
def test_the_owner_sees_the_price_that_the_settings_have(config, price):
    page = RunPage(NodeHealth(config.role, 0.0), lambda: 0.0)
    NodePage(page, config, Address("127.0.0.1", 4040), "a-token", 0.0)

    own = page.own()

    assert (own.get("price_per_hour"), own.get("currency")) == price
