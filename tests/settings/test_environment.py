"""Settings from the environment: flags go before them, and they before the file."""

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.command_line import make_parser
from p2pswarm.commands.doctor.flags import config_of
from p2pswarm.commands.node import environment_settings, settings_of
from p2pswarm.settings.environment import from_environment

HERE, THERE = "127.0.0.1:4001", "127.0.0.1:4002"


def test_nodes_are_parted_by_commas_or_spaces():
    found = from_environment({"P2PSWARM_BOOTSTRAP": f" {HERE}, {THERE}\n"})

    assert found == {"bootstrap": [HERE, THERE]}


def test_what_is_empty_is_not_there():
    assert from_environment({"P2PSWARM_BOOTSTRAP": " ", "P2PSWARM_INVITE": ""}) == {}


def test_the_name_is_read_too():
    assert from_environment({"P2PSWARM_NAME": "attic"}) == {"name": "attic"}


@pytest.mark.parametrize(
    ("flags", "environment", "chosen"),
    [
        ([], "", ("203.0.113.9:4000",)),
        ([], HERE, (HERE,)),
        (["--bootstrap", THERE], HERE, (THERE,)),
    ],
)
def test_a_flag_goes_before_the_environment_and_that_before_the_file(
    tmp_path, monkeypatch, flags, environment, chosen
):
    file = tmp_path / "node.toml"
    file.write_text('bootstrap = ["203.0.113.9:4000"]\n')
    monkeypatch.setenv("P2PSWARM_BOOTSTRAP", environment)

    config = settings_of(make_parser().parse_args(["node", "--config", str(file), *flags]))

    assert config.bootstrap == chosen
    assert config.role == "stage"


def test_an_address_that_is_none_is_named_by_its_variable():
    with pytest.raises(Unusable, match="P2PSWARM_BOOTSTRAP: '4000' is not"):
        environment_settings({"P2PSWARM_BOOTSTRAP": "4000"})


def test_an_invitation_of_the_environment_may_be_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("P2PSWARM_INVITE", str(tmp_path / "missing"))

    with pytest.raises(Unusable, match="is neither a text that begins with"):
        settings_of(make_parser().parse_args(["node"]))


def test_the_doctor_asks_the_same_nodes(monkeypatch):
    monkeypatch.setenv("P2PSWARM_BOOTSTRAP", HERE)

    assert config_of(make_parser().parse_args(["doctor"])).bootstrap == (HERE,)
