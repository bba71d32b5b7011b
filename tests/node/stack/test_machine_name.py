"""The name of a machine: what its owner calls it, or the host's, and never a trick."""

import socket

import pytest

from p2pswarm.node.stack.machine_name import NAMELESS, machine_name
from p2pswarm.settings.node_config import NAME_CHARS_MAX, NodeConfig


def test_a_machine_has_the_name_of_its_host_unless_its_owner_gives_another():
    assert machine_name(NodeConfig()) == socket.gethostname()[:NAME_CHARS_MAX]
    assert machine_name(NodeConfig(name="attic")) == "attic"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[2Jattic", "?[2Jattic"),
        ("at\u202etic\u2066", "at?tic?"),
        (" attic ", "attic"),
        ("   ", NAMELESS),
        ("x" * 99, "x" * NAME_CHARS_MAX),
    ],
)
def test_a_name_is_short_and_printable_wherever_it_comes_from(name, shown):
    assert machine_name(NodeConfig(name=name)) == shown
