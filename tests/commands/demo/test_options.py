"""The settings that the demo writes for its nodes are settings that a node can read."""

from pathlib import Path

import pytest

from p2pswarm.commands.demo.options import (
    Options,
    bootstrap_settings,
    server_settings,
    trainer_settings,
)
from p2pswarm.settings.parser import load


@pytest.fixture
def read(tmp_path):
    def reader(text: str):
        path = tmp_path / "node.toml"
        path.write_text(text)
        return load(path)

    return reader


def test_every_node_leaves_with_the_demo(read):
    texts = (
        bootstrap_settings(),
        server_settings("127.0.0.1:4000", Options()),
        trainer_settings("127.0.0.1:4000", Options()),
    )

    nodes = [read(text) for text in texts]

    assert [node.role for node in nodes] == ["bootstrap", "stage", "trainer"]
    assert all(node.leave_at_eof for node in nodes)
    assert [node.bootstrap for node in nodes] == [(), *[("127.0.0.1:4000",)] * 2]


@pytest.mark.parametrize("stages", [1, 2, 8])
def test_the_run_is_as_it_was_asked_for(read, stages):
    options = Options(stages=stages, replicas=3, steps=7)

    node = read(trainer_settings("127.0.0.1:4000", options))

    assert (node.run.stages, node.run.min_replicas, node.run.steps) == (stages, 3, 7)
    assert node.run.optimizer.decay_steps == 7
    assert node.train.suffixes == (".py",)
    assert node.train.weights is None


def test_the_users_text_may_have_any_name(read, tmp_path):
    data = tmp_path / 'a "quoted" \\ näme'

    node = read(trainer_settings("127.0.0.1:4000", Options(data=data)))

    assert node.train.data == Path(data)
    assert node.train.suffixes == ()


def test_a_rehearsal_has_slow_machines_in_the_last_stage_and_fast_ones_anywhere(read):
    options = Options(uneven=True, stages=3)

    trainer = read(trainer_settings("127.0.0.1:4000", options))
    slow = read(server_settings("127.0.0.1:4000", options, slow=True))
    fast = read(server_settings("127.0.0.1:4000", options))

    assert trainer.run.emulated
    assert trainer.run.batch.evaluate_every == 0
    assert (slow.serve.device, slow.serve.stage) == ("emulated", 2)
    assert (fast.serve.device, fast.serve.stage) == ("emulated", None)
    assert slow.serve.emulated_forward_s > 2 * fast.serve.emulated_forward_s


@pytest.mark.parametrize(("stages", "replicas", "least"), [(2, 3, 2), (3, 3, 2), (2, 2, 1)])
def test_a_rehearsal_begins_though_its_slow_servers_come_last(read, stages, replicas, least):
    """Until then the fast ones have spread over all stages, and none is moved before a step."""
    options = Options(uneven=True, stages=stages, replicas=replicas)

    assert read(trainer_settings("127.0.0.1:4000", options)).run.min_replicas == least
