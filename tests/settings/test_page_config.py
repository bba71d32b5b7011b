"""Where a page is, by the settings."""

import pytest

from p2pswarm.base.ids import Address
from p2pswarm.node.page import PORTS_TRIED, places_of
from p2pswarm.settings.page_config import PAGE_PORT, PageConfig
from p2pswarm.settings.parser import load


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:4040", "127.0.0.1:4040"),
        (":4040", "127.0.0.1:4040"),
        ("4040", "127.0.0.1:4040"),
        ("localhost:1", "127.0.0.1:1"),
        ("[::1]:0", "[::1]:0"),
        ("0.0.0.0:80", "0.0.0.0:80"),
    ],
)
def test_an_address_is_of_this_machine(listen, address):
    assert str(PageConfig(listen=listen).address) == address


@pytest.mark.parametrize(
    "listen", ["", "example.org:4040", "127.0.0.1", "1:2:3", "127.0.0.1:70000", "off:"]
)
def test_what_is_none_is_refused_in_a_line(listen, tmp_path):
    file = tmp_path / "node.toml"
    file.write_text(f'[page]\nlisten = "{listen}"\n')

    with pytest.raises(Exception, match=r"page.*listen is"):
        load(file)


@pytest.mark.parametrize("name", ["", "a b", "http://a", "a:80", "a/b", "é", "a@b"])
def test_a_name_is_a_hosts(name):
    with pytest.raises(ValueError, match="names has at most"):
        PageConfig(names=(name,))


def test_a_page_is_where_a_person_watches():
    usual = PageConfig()

    assert places_of(usual, "trainer", in_terminal=False)[0] == Address("127.0.0.1", PAGE_PORT)
    assert len(places_of(usual, "stage", in_terminal=True)) == PORTS_TRIED + 1
    assert places_of(usual, "stage", in_terminal=False) == []
    assert places_of(PageConfig(listen="off"), "trainer", in_terminal=True) == []
    assert places_of(PageConfig(listen="127.0.0.1:9"), "stage", in_terminal=False) == [
        Address("127.0.0.1", 9)
    ]
