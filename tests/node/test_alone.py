"""What the servers in a trainer's own process may read and write: what its settings name."""

from pathlib import Path

import pytest

from p2pswarm.node.alone import own_files
from p2pswarm.settings.config import PRETRAINED, ModelConfig, RunConfig
from p2pswarm.settings.node_config import CheckpointConfig, NodeConfig, ServeConfig


def trainer(model: ModelConfig, serve: ServeConfig | None = None) -> NodeConfig:
    run = RunConfig(start=PRETRAINED, model=model)
    return NodeConfig(role="trainer", run=run, serve=serve or ServeConfig())


def test_they_read_the_model_that_the_run_starts_from(tmp_path):
    assert own_files(trainer(ModelConfig(folder=tmp_path))).pretrained == tmp_path


def test_they_download_the_model_of_the_hub_that_the_run_starts_from(tmp_path):
    model = ModelConfig(folder=tmp_path / "missing", hub="owner/name")

    assert own_files(trainer(model)).hub == "owner/name"


@pytest.mark.parametrize("serve", [ServeConfig(pretrained=Path("mine")), ServeConfig(hub="a/b")])
def test_what_the_servers_own_settings_name_stays(tmp_path, serve):
    assert own_files(trainer(ModelConfig(folder=tmp_path), serve)) == serve


def test_they_write_checkpoints_where_the_trainer_has_them():
    config = NodeConfig(
        checkpoint=CheckpointConfig(target="saved"),
        serve=ServeConfig(checkpoint_targets=("s3://b",)),
    )

    assert own_files(config).checkpoint_targets == ("s3://b", "saved")
    assert own_files(NodeConfig()).checkpoint_targets == ()
