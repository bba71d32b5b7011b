"""A node's first words."""

import tomllib

import pytest

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.node.progress.banner import greeting
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import from_values
from p2pswarm.settings.train_config import TrainConfig

OWN = Contact(PeerId(bytes(32)), Address("203.0.113.7", 4000))
HOW = "  python -m p2pswarm.node --bootstrap "


def test_the_first_node_tells_how_others_join_it():
    lines = greeting(NodeConfig(role="bootstrap"), OWN, 0.05)

    assert lines == [
        "peer aaaaaaaa at 203.0.113.7:4000, ready after 0.050 s",
        "a swarm of one; others join it with",
        HOW + "203.0.113.7:4000",
    ]


def test_a_server_that_joined_says_who_it_is():
    assert len(greeting(NodeConfig(role="stage", bootstrap=("a:1",)), OWN, 0.05)) == 1


def test_a_trainer_tells_what_it_needs_and_what_to_run_there():
    run = RunConfig(name="my run", stages=2, min_replicas=3)

    lines = greeting(NodeConfig(role="trainer", run=run, bootstrap=("a:1",)), OWN, 0.05)

    assert lines[1:] == [
        "run 'my run' needs 6 servers or more, 3 a stage; on each such machine run",
        HOW + "a:1",
    ]


def test_a_trainer_that_serves_alone_needs_nobody_and_says_how_to_help():
    train = TrainConfig(alone=True)

    lines = greeting(NodeConfig(role="trainer", train=train), OWN, 0.05)

    assert lines[1] == "run 'p2pswarm' is served in this process, too; machines that help it run"


def test_a_trainer_without_a_swarm_is_joined_itself():
    lines = greeting(NodeConfig(role="trainer", run=RunConfig(stages=1)), OWN, 0.05)

    assert lines[1].startswith("run 'p2pswarm' needs 1 server or more; on")
    assert lines[2] == HOW + "203.0.113.7:4000"


def test_the_trainer_of_a_closed_run_says_that_servers_need_an_invitation():
    run = RunConfig(stages=1, owner="a" * 64, strangers="nothing")
    config = NodeConfig(role="trainer", run=run)

    assert greeting(config, OWN, 0.05)[2] == (
        "  p2pswarm node --invite TEXT, the line of p2pswarm invite FILE"
    )


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"start": "pretrained", "model": {"family": "hf:./far/Qwen"}}, "'Qwen'"),
        ({"start": "pretrained", "model": {"family": "hf:Qwen/Qwen"}}, "Qwen/Qwen"),
        ({"model": {"family": "mine.models:make"}}, "mine"),
    ],
)
def test_a_trainer_tells_what_servers_have_to_set_themselves(run, said):
    config = NodeConfig(role="trainer", run=from_values(RunConfig, run), bootstrap=("a:1",))

    *_, command, where, table, setting = greeting(config, OWN, 0.05)
    assert (command, where) == (HOW + "a:1 --config serve.toml", "where serve.toml says")
    assert said in str(tomllib.loads(f"{table}\n{setting}"))
    assert from_values(NodeConfig, tomllib.loads(f"{table}\n{setting}"))


def test_a_model_of_the_library_from_random_weights_needs_nothing_more():
    run = from_values(RunConfig, {"model": {"family": "hf:./far/Qwen"}})

    assert greeting(NodeConfig(role="trainer", run=run, bootstrap=("a:1",)), OWN, 0.05)[-1] == (
        HOW + "a:1"
    )
