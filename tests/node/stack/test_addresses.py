"""Where a node listens and is dialled, and what is said when nobody answers."""

import pytest

from p2pswarm.base.errors import BadHandshake, DialFailed, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.base.transient_errors import NobodyAnswers
from p2pswarm.node.stack.addresses import announced, check, places_to_listen, seeds, why_nobody
from p2pswarm.settings.node_config import NetworkConfig, NodeConfig

DIALLED = Address("127.0.0.1", 4000)


def elsewhere(_hosts):
    """This machine's own address."""
    return "203.0.113.7"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("", ["[::]:4000", "0.0.0.0:4000", "[::]:0", "0.0.0.0:0"]),
        (":4001", ["[::]:4001", "0.0.0.0:4001"]),
        (" :0", ["[::]:0", "0.0.0.0:0"]),
        ("127.0.0.1:1", ["127.0.0.1:1"]),
        ("[::1]:1", ["[::1]:1"]),
    ],
)
def test_a_node_listens_where_it_is_told_or_at_the_usual_port(text, places):
    assert [str(place) for place in places_to_listen(text)] == places


@pytest.mark.parametrize("text", ["4000", "http://a:1", "a:b", "[[z]]:4"])
def test_what_is_no_address_is_named_with_its_setting(text):
    with pytest.raises(Unusable, match="listen: "):
        places_to_listen(text)
    with pytest.raises(Unusable, match="bootstrap: "):
        seeds(NodeConfig(bootstrap=(text,)))
    with pytest.raises(Unusable, match=r"network\.announce: "):
        check(NodeConfig(network=NetworkConfig(announce=text)))


def test_port_0_is_for_listening_alone():
    assert places_to_listen("127.0.0.1:0")
    with pytest.raises(Unusable, match="nobody can be dialled at port 0"):
        seeds(NodeConfig(bootstrap=("127.0.0.1:0",)))


def test_good_addresses_pass():
    config = NodeConfig(bootstrap=("a:1",), listen=":0", network=NetworkConfig(announce="b:2"))

    check(config)

    assert seeds(config) == (Contact(None, Address("a", 1)),)


def test_others_dial_what_the_user_says():
    config = NodeConfig(network=NetworkConfig(announce="example.org:9"))

    assert announced(DIALLED, config, elsewhere) == Address("example.org", 9)


def test_others_dial_where_the_node_listens():
    assert announced(DIALLED, NodeConfig(), elsewhere) == DIALLED


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_node_that_listens_everywhere_is_dialled_at_its_host_on_the_way_to_the_swarm(host):
    asked = []

    def own_host(hosts):
        asked.append(hosts)
        return "203.0.113.7"

    address = announced(Address(host, 7), NodeConfig(bootstrap=("a:1", "b:2")), own_host)

    assert address == Address("203.0.113.7", 7)
    assert asked == [("a", "b")]


def test_a_closed_port_is_asked_about():
    error = why_nobody([DialFailed("a:1: Connection refused"), BadHandshake("b:1: another")])

    assert isinstance(error, NobodyAnswers)
    assert str(error) == (
        "no bootstrap address answers: a:1: Connection refused; b:1: another; "
        "is a node running there, and its port open?"
    )


def test_a_peer_of_another_version_is_not_suspected_of_a_closed_port():
    error = why_nobody([BadHandshake("a:1: the peer speaks another protocol or another version")])

    assert type(error) is Unusable
    assert str(error) == (
        "no bootstrap address is a node that we can join: "
        "a:1: the peer speaks another protocol or another version"
    )
