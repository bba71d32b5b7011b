"""Packets and texts of routers: what we ask is as the RFCs have it, and no answer does harm."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address
from p2pswarm.net.os.local_network import assumed_gateway, gateway6_in, gateway_in
from p2pswarm.reach.nat import nat_pmp, pcp, upnp
from p2pswarm.reach.nat.upnp import DEPTH_MAX, ELEMENTS_MAX, XML_BYTES_MAX, read_xml

NONCE = bytes(range(12))
GATEWAY = "192.168.1.1"
MAPPED_HOST = bytes(10) + b"\xff\xff" + bytes((203, 0, 113, 7))
GRANTED = struct.pack("!BBBBII12x", 2, 0x81, 0, 0, 3600, 99) + struct.pack(
    "!12sB3xHH16s", NONCE, 6, 4000, 4321, MAPPED_HOST
)
CONTROL = upnp.Control(f"http://{GATEWAY}:5000/ctl", upnp.SERVICES[1])
DESCRIPTION = b"""<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><URLBase>http://evil.example/</URLBase><device>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>
<controlURL>/ctl/IPConn</controlURL></service></serviceList></device></root>"""


def test_pcp_asks_for_a_tcp_port():
    request = pcp.map_request(NONCE, "192.168.1.5", 4000, Address("0.0.0.0", 4001), 7200)

    assert len(request) == 60
    assert request[:8] == bytes((2, 1, 0, 0)) + (7200).to_bytes(4)
    assert request[8:24] == bytes(10) + b"\xff\xff" + bytes((192, 168, 1, 5))
    assert request[24:36] == NONCE
    assert request[36:44] == bytes((6, 0, 0, 0)) + (4000).to_bytes(2) + (4001).to_bytes(2)


def test_pcp_has_a_nonce_of_its_own_size():
    with pytest.raises(ValueError, match="12 bytes"):
        pcp.map_request(b"short", "192.168.1.5", 4000, Address("0.0.0.0", 0), 1)


def test_pcp_s_answer_names_the_outside_address():
    answer = pcp.read_answer(GRANTED)

    assert answer == pcp.PcpAnswer(0, 3600, NONCE, 4000, Address("203.0.113.7", 4321))


def test_a_router_that_knows_only_nat_pmp_is_one_without_pcp():
    assert pcp.read_answer(bytes((0, 0x81, 0, 1, 0, 0, 0, 9))).result == pcp.UNSUPPORTED_VERSION


def test_nat_pmp_s_answer_about_its_address_is_none_of_pcp():
    with pytest.raises(BadMessage):
        pcp.read_answer(bytes((0, 0x80, 0, 0)) + bytes(8))


def test_a_refusal_of_pcp_may_end_after_its_header():
    assert pcp.read_answer(GRANTED[:3] + b"\x08" + GRANTED[4:24]).result == 8


def test_nat_pmp_as_the_rfc_has_it():
    assert nat_pmp.address_request() == b"\0\0"
    assert nat_pmp.map_request(4000, 4001, 7200) == struct.pack(
        "!BBHHHI", 0, 2, 0, 4000, 4001, 7200
    )
    outside = struct.pack("!BBHI4B", 0, 128, 0, 5, 203, 0, 113, 7)
    assert nat_pmp.read_answer(outside) == nat_pmp.OutsideHost("203.0.113.7")
    mapped = struct.pack("!BBHIHHI", 0, 130, 0, 5, 4000, 4321, 3600)
    assert nat_pmp.read_answer(mapped) == nat_pmp.Mapped(4000, 4321, 3600)
    assert nat_pmp.read_answer(bytes((0, 130, 0, 2))) == nat_pmp.PmpRefusal(2)


@given(data=st.binary(max_size=80))
@example(data=GRANTED)
@example(data=GRANTED[:-1])
@example(data=GRANTED[:24])
def test_no_packet_raises_more_than_bad_message(data):
    for read in (pcp.read_answer, nat_pmp.read_answer):
        try:
            read(data)
        except BadMessage:
            continue


@given(at=st.integers(0, len(GRANTED) - 1), value=st.integers(0, 255))
def test_a_changed_grant_is_read_or_refused(at, value):
    data = bytearray(GRANTED)
    data[at] = value
    try:
        pcp.read_answer(bytes(data))
    except BadMessage:
        return


def test_a_search_answer_leads_to_the_gateway():
    answer = b"HTTP/1.1 200 OK\r\nST: x\r\nLocation: http://192.168.1.1:5000/root.xml\r\n\r\n"

    assert upnp.read_search_answer(answer, GATEWAY) == "http://192.168.1.1:5000/root.xml"
    with pytest.raises(BadMessage):
        upnp.read_search_answer(answer, "192.168.1.2")


@pytest.mark.parametrize(
    "url",
    [
        "http://192.168.1.9/x",
        "http://192.168.1.1.evil.example/x",
        "http://192.168.1.1@evil.example/x",
        "http://evil.example@192.168.1.1/x",
        "https://192.168.1.1/x",
        "file:///etc/passwd",
        "http://192.168.1.1:99999/x",
        "http://192.168.1.1:0x50/x",
        "http://192.168.1.1/" + "x" * 300,
        "http://192.168.1.1/a b",
        "http://[192.168.1.1/",
        "//192.168.1.1/x",
        "",
    ],
)
def test_no_url_leads_elsewhere(url):
    with pytest.raises(BadMessage):
        upnp.checked_url(url, GATEWAY)


def test_a_description_names_the_control_url_at_the_gateway():
    control = upnp.read_description(DESCRIPTION, f"http://{GATEWAY}:5000/root.xml", GATEWAY)

    assert control == upnp.Control(f"http://{GATEWAY}:5000/ctl/IPConn", upnp.SERVICES[1])


def test_a_control_url_elsewhere_is_refused():
    elsewhere = DESCRIPTION.replace(b"/ctl/IPConn", b"http://203.0.113.9/ctl")

    with pytest.raises(BadMessage):
        upnp.read_description(elsewhere, f"http://{GATEWAY}:5000/root.xml", GATEWAY)


def test_a_call_names_action_and_arguments():
    arguments = upnp.add_arguments("192.168.1.5", 4000, 4001, 7200)
    root = read_xml(upnp.call_body(CONTROL, "AddPortMapping", arguments))

    assert list(root.find_all("AddPortMapping"))
    assert {name: root.text_of(name) for name in arguments} == arguments
    assert upnp.headers(CONTROL, "X")["SOAPAction"] == f'"{CONTROL.service}#X"'


def test_a_refusal_has_its_code():
    fault = b"<e><errorCode>718</errorCode><errorDescription>taken</errorDescription></e>"

    with pytest.raises(upnp.SoapRefusal, match="718: taken") as caught:
        upnp.read_reply(500, fault)

    assert caught.value.code == upnp.CONFLICT


@pytest.mark.parametrize(
    "document",
    [
        b'<!DOCTYPE a [<!ENTITY b "ccccc">]><a>&b;</a>',
        b'<!DOCTYPE a SYSTEM "http://evil.example/x.dtd"><a/>',
        b'<!DOCTYPE a [<!ENTITY % b SYSTEM "file:///etc/passwd">%b;]><a/>',
        b"<a>" * (DEPTH_MAX + 1) + b"</a>" * (DEPTH_MAX + 1),
        b"<a>" + b"<b/>" * ELEMENTS_MAX + b"</a>",
        b"<a>" + b"x" * 2000 + b"</a>",
        b"<a>" + b" " * XML_BYTES_MAX + b"</a>",
        b'<?xml version="1.0" encoding="utf-7"?><a>+ADw-</a',
        b"<a>&undefined;</a>",
        b"",
    ],
)
def test_xml_that_could_do_harm_is_refused(document):
    with pytest.raises(BadMessage):
        read_xml(document)


@given(data=st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_text_raises_more_than_bad_message(data):
    url = f"http://{GATEWAY}/root.xml"
    for read in (
        lambda: upnp.read_search_answer(b"HTTP/1.1 200 OK\r\nLOCATION:" + data, GATEWAY),
        lambda: upnp.read_description(data, url, GATEWAY),
        lambda: upnp.read_reply(200, data, "x"),
        lambda: upnp.checked_url(data.decode("latin-1"), GATEWAY),
    ):
        try:
            read()
        except (BadMessage, upnp.SoapRefusal):
            continue


@given(at=st.integers(0, len(DESCRIPTION) - 1), piece=st.binary(max_size=8))
def test_a_changed_description_leads_to_the_gateway_or_nowhere(at, piece):
    changed = DESCRIPTION[:at] + piece + DESCRIPTION[at + len(piece) :]
    try:
        control = upnp.read_description(changed, f"http://{GATEWAY}/root.xml", GATEWAY)
    except BadMessage:
        return
    assert control.url.startswith(f"http://{GATEWAY}:")


ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
"""


def test_the_gateway_is_that_of_the_default_route_of_least_metric():
    assert gateway_in(ROUTES) == "192.168.2.1"
    assert gateway_in(ROUTES.splitlines()[0]) is None


NOBODY6, LINK_LOCAL = "0" * 32, "fe80" + "0" * 27 + "1"
GLOBAL = "2a000077" + "0" * 23 + "1"


def route6(target: str, bits: str, hop: str, metric: int, flags: int = 3) -> str:
    return f"{target} {bits} {NOBODY6} 00 {hop} {metric:08x} 00000001 00000000 {flags:08x} eth0\n"


def test_the_gateway_of_ipv6_is_that_of_its_default_route():
    network = route6(GLOBAL, "40", NOBODY6, 256, 1)

    assert gateway6_in(network + route6(NOBODY6, "00", GLOBAL, 1024)) == "2a00:77::1"
    assert gateway6_in(route6(NOBODY6, "00", LINK_LOCAL, 1024)) == "fe80::1%eth0"
    assert (
        gateway6_in(route6(NOBODY6, "00", GLOBAL, 1024) + route6(NOBODY6, "00", LINK_LOCAL, 512))
        == "fe80::1%eth0"
    )
    assert gateway6_in(network + route6(NOBODY6, "00", NOBODY6, 256, 1)) is None


@given(text=st.text(max_size=300))
def test_any_text_of_routes_is_read(text):
    gateway_in(text)
    gateway_in(ROUTES + text)
    gateway6_in(text)
    gateway6_in(route6(NOBODY6, "00", GLOBAL, 1) + text)


@pytest.mark.parametrize(
    ("own", "gateway"),
    [
        ("192.168.1.5", "192.168.1.1"),
        ("192.168.1.1", None),
        ("203.0.114.5", None),
        ("127.0.0.1", None),
        ("fd00::5", None),
    ],
)
def test_elsewhere_a_private_network_s_first_address_is_assumed(own, gateway):
    assert assumed_gateway(own) == gateway
