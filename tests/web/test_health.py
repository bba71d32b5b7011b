"""Whether a node lives, and whether it is ready."""

from p2pswarm.web.health import STANDS_STILL_S, HealthAnswer, NodeHealth


def test_a_loop_that_stood_still_is_neither_live_nor_ready():
    health = NodeHealth("stage", 0.0)
    health.of_role = lambda: HealthAnswer(ok=True, why="serves")

    assert health.ready(STANDS_STILL_S).ok
    assert not health.live(STANDS_STILL_S + 1).ok
    assert health.ready(STANDS_STILL_S + 1).status == 503
    health.on_turn(STANDS_STILL_S + 1)
    assert health.live(STANDS_STILL_S + 2).ok


def test_a_node_that_joins_lives_and_is_not_ready():
    health = NodeHealth("trainer", 0.0)

    assert health.live(1.0).status == 200
    assert health.ready(1.0).to_json() == '{"ok":false,"why":"a trainer that joins the swarm"}'
