"""Each profile does what its name says, found out by asking, as a node would.

Skipped where no lab may be opened; the reason is told.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

from natlab.classify import FIRST, KINDS, PATIENCE_S, classify, probe, punch
from natlab.lab import PROVIDER, LabUnavailable, NatLab
from natlab.profiles import PROFILES, Filtering, Mapping

ROUTED = [name for name, profile in PROFILES.items() if not profile.port_mapping]
MAP_BY_NAT_PMP = """
import socket, struct, sys
port = int(sys.argv[1])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.settimeout(20)
    sock.connect(("192.168.1.1", 5351))
    sock.send(struct.pack("!BBHHHI", 0, 2, 0, port, port, 3600))
    print(struct.unpack("!BBHIHHI", sock.recv(64))[5])
"""
MAP_BY_UPNP = """
import re, socket, sys, urllib.request
port = sys.argv[1]
SEARCH = "M-SEARCH * HTTP/1.1\\r\\nHOST: 239.255.255.250:1900\\r\\nMAN: \\"ssdp:discover\\"\\r\\n"
SEARCH += "MX: 1\\r\\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\\r\\n\\r\\n"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    sock.settimeout(20)
    sock.bind(("192.168.1.10", 0))
    sock.sendto(SEARCH.encode(), ("239.255.255.250", 1900))
    found = sock.recv(4096).decode()
location = re.search(r"(?i)location: *(\\S+)", found)[1]
device = urllib.request.urlopen(location, timeout=20).read().decode()
service = re.search(
    r"<serviceType>(urn:schemas-upnp-org:service:WANIPConnection:\\d)</serviceType>"
    r".*?<controlURL>(.*?)</controlURL>", device, re.DOTALL)
fields = dict(NewRemoteHost="", NewExternalPort=port, NewProtocol="TCP", NewInternalPort=port,
    NewInternalClient="192.168.1.10", NewEnabled="1", NewPortMappingDescription="lab",
    NewLeaseDuration="3600")
body = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
envelope = (
    '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/">'
    f'<s:Body><u:AddPortMapping xmlns:u="{service[1]}">{body}</u:AddPortMapping></s:Body>'
    "</s:Envelope>"
)
request = urllib.request.Request(
    location.rpartition("/")[0] + service[2], envelope.encode(),
    {"SOAPAction": f'"{service[1]}#AddPortMapping"', "Content-Type": "text/xml"})
assert urllib.request.urlopen(request, timeout=20).status == 200
print(port)
"""


@contextmanager
def opened(names: list[str], delay_s: float = 0.0):
    """A lab, or the test is skipped and says why."""
    lab = NatLab(names, delay_s=delay_s)
    try:
        lab.__enter__()
    except LabUnavailable as reason:
        pytest.skip(str(reason))
    with closing(lab):
        yield lab


@pytest.fixture(scope="module")
def found():
    """What each site's routers do, by profile; all are asked at once, since silence takes time."""
    with opened(ROUTED) as lab, ThreadPoolExecutor(len(ROUTED)) as pool:
        findings = pool.map(lambda site: classify(lab, site), lab.sites)
        yield dict(zip(ROUTED, findings, strict=True))


@pytest.fixture(scope="module")
def port_mapping_lab():
    with opened(["upnp", "upnp"]) as lab:
        yield lab


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ROUTED)
def test_profile_maps_and_filters_as_it_says(found, name: str, kind: str):
    profile = PROFILES[name]

    finding = found[name][kind]

    assert (finding.mapping, finding.filtering) == (profile.mapping, profile.filtering)


def test_two_layers_translate_twice():
    with opened(["double"]) as lab, ExitStack() as stack:
        site = lab.sites[0]
        hosts = (site.host, site.routers[0], FIRST)
        home, provider, outside = (stack.enter_context(probe(lab, host)) for host in hosts)
        port = home.open()

        seen = [
            home.ask("tcp", port, (address, asked.open()))[0]
            for address, asked in ((PROVIDER[0], provider), (lab.address(FIRST), outside))
        ]

    assert seen == [PROVIDER[1], site.wan_address]


def test_only_the_router_without_a_firewall_refuses_who_knocks(found):
    refusing = [name for name in ROUTED if found[name]["tcp"].refuses]

    assert refusing == ["masquerade"]


def test_router_that_maps_ports_filters_like_others_until_it_is_asked(port_mapping_lab):
    found = classify(port_mapping_lab, port_mapping_lab.sites[1])

    wanted = (PROFILES["upnp"].mapping, PROFILES["upnp"].filtering)
    assert {(found[kind].mapping, found[kind].filtering) for kind in KINDS} == {wanted}


@pytest.mark.parametrize(("name", "kept"), [("masquerade", False), ("masquerade-drop", True)])
def test_packet_that_comes_early_takes_the_port_away_where_no_firewall_drops_it(name, kept):
    with opened([name]) as lab, ExitStack() as stack:
        site = lab.sites[0]
        home, stranger = (stack.enter_context(probe(lab, host)) for host in (site.host, FIRST))
        at = lab.address(FIRST)
        port, other, from_port, answering = (
            home.open(),
            home.open(),
            stranger.open(),
            stranger.open(),
        )
        early = {"port": from_port, "to": (site.wan_address, port), "patience_s": 0}
        stranger.order(do="knock", kind="udp", **early).told()
        home.ask("udp", other, (at, answering))  # the answer comes after what was sent before it

        _, seen = home.ask("udp", port, (at, from_port))

    assert (seen == port) is kept


@pytest.mark.full
def test_holes_can_be_punched_unless_a_random_port_meets_a_router_that_minds_ports():
    """By plain sockets, both dialling at once: what nodes can do at best (RFC 5382, REQ-2)."""
    names = ["address-restricted", "port-restricted", "masquerade", "symmetric"]
    with opened([*names, *names], delay_s=0.02) as lab:
        a_sites, b_sites = lab.sites[: len(names)], lab.sites[len(names) :]
        pairs = [(a, b) for i, a in enumerate(a_sites) for b in b_sites[i:]]
        with ThreadPoolExecutor(len(pairs)) as pool:
            punched = list(pool.map(lambda pair: punch(lab, *pair), pairs))

    possible = []
    for pair in pairs:
        maps = {site.profile.mapping for site in pair}
        lets_in = {site.profile.filtering for site in pair}
        possible.append(Mapping.DEPENDENT not in maps or Filtering.ADDRESS in lets_in)
    assert punched == possible
    assert any(punched)
    assert not all(punched)


@pytest.mark.parametrize("program", [MAP_BY_NAT_PMP, MAP_BY_UPNP], ids=["nat-pmp", "upnp"])
def test_port_that_was_mapped_lets_a_stranger_in(port_mapping_lab, program: str):
    lab, site = port_mapping_lab, port_mapping_lab.sites[0]
    with probe(lab, site.host) as home, probe(lab, FIRST) as stranger:
        port, from_port = home.open(), stranger.open()
        knock = {"do": "knock", "kind": "tcp", "port": from_port, "patience_s": PATIENCE_S}
        before = stranger.order(to=(site.wan_address, port), **knock).told()

        argv = [sys.executable, "-I", "-c", program, str(port)]
        mapped = lab.run(site.host, argv, stdout=subprocess.PIPE, text=True, check=True).stdout

        after = stranger.order(to=(site.wan_address, int(mapped)), **knock).told()
        assert (before, after) == ("silence", "open")
