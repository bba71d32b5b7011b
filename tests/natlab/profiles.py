"""What stands before a host: the rules of its routers, by the name of the profile.

A NAT is told by two things (RFC 4787): how it maps (does one port of ours look the same to
everybody?) and what it lets in (whoever; hosts that we sent something to; only their ports that we
sent it to). Each profile names what it does; `test_profiles.py` asks probes whether that is so.

Without a rule that drops what strangers send to the router itself, a packet that comes early makes
an entry in the router's own connection table. It takes the place of the entry that the host's
packet would make a moment later, so that one leaves from another port; to a TCP SYN, the router
answers RST. `masquerade` is like that, all others have the rule.

Shapes:  rules are text for `nft -f`; WAN_ADDRESS stands for the router's address.
Source:  RFC 4787 and RFC 5382 for the words; RFC 6092 for IPv6; nft(8).
"""

from dataclasses import dataclass
from enum import StrEnum

WAN_ADDRESS = "WAN_ADDRESS"
LIFETIME_S = 300  # of what a full cone remembers; RFC 4787 REQ-5 asks for at least 120


class Mapping(StrEnum):
    """What a port behind the router looks like from outside."""

    INDEPENDENT = "endpoint-independent"
    DEPENDENT = "endpoint-dependent"
    """Each destination sees another port."""


class Filtering(StrEnum):
    """Whose packets reach a port that is mapped."""

    INDEPENDENT = "endpoint-independent"
    ADDRESS = "address-dependent"
    PORT = "address-and-port-dependent"


HOST_FIREWALL = """
table inet host {
  chain input { type filter hook input priority filter; policy accept;
    iifname "wan0" ct state established,related accept
    iifname "wan0" meta l4proto { icmp, ipv6-icmp } accept
    iifname "wan0" drop
  }
}
"""
FULL_CONE = f"""
table ip nat {{
  map mapped {{ type inet_proto . inet_service : ipv4_addr . inet_service
    flags dynamic,timeout; timeout {LIFETIME_S}s; size 65536; }}
  chain prerouting {{ type nat hook prerouting priority dstnat; policy accept;
    iifname "wan0" ip daddr {WAN_ADDRESS} meta l4proto {{ tcp, udp }} \\
      dnat ip to meta l4proto . th dport map @mapped
  }}
  chain postrouting {{ type nat hook postrouting priority srcnat; policy accept;
    oifname "wan0" meta l4proto {{ tcp, udp }} \\
      update @mapped {{ meta l4proto . th sport : ip saddr . th sport }}
    oifname "wan0" snat to {WAN_ADDRESS}
  }}
}}
"""
ONLY_CONTACTED_ADDRESSES = f"""
table ip filter {{
  set contacted {{ type ipv4_addr . inet_proto . inet_service . ipv4_addr
    flags dynamic,timeout; timeout {LIFETIME_S}s; size 65536; }}
  chain forward {{ type filter hook forward priority filter; policy accept;
    oifname "wan0" update @contacted {{ ip saddr . meta l4proto . th sport . ip daddr }}
    iifname "wan0" ct state established,related accept
    iifname "wan0" ip daddr . meta l4proto . th dport . ip saddr @contacted accept
    iifname "wan0" drop
  }}
}}
"""
ONLY_ANSWERS = """
table inet filter {
  chain forward { type filter hook forward priority filter; policy accept;
    iifname "wan0" ct state established,related accept
    iifname "wan0" meta l4proto ipv6-icmp accept
    iifname "wan0" drop
  }
}
"""
MASQUERADE = """
table ip nat {
  chain prerouting { type nat hook prerouting priority dstnat; policy accept; }
  chain postrouting { type nat hook postrouting priority srcnat; policy accept;
    oifname "wan0" masquerade
  }
}
"""
SYMMETRIC = MASQUERADE.replace("masquerade", "masquerade fully-random")
# miniupnpd adds its rules to these chains; the names are those of its own nft_init.sh.
PORT_MAPPING = """
table inet filter {
  chain miniupnpd { }
  chain forward { type filter hook forward priority filter; policy accept;
    iifname "wan0" ct state established,related accept
    jump miniupnpd
    iifname "wan0" drop
  }
  chain prerouting_miniupnpd { }
  chain prerouting { type nat hook prerouting priority dstnat; policy accept;
    jump prerouting_miniupnpd
  }
  chain postrouting_miniupnpd { }
  chain postrouting { type nat hook postrouting priority srcnat; policy accept;
    jump postrouting_miniupnpd
    oifname "wan0" masquerade
  }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What stands before a host."""

    name: str
    about: str
    """In a line, for people."""
    rules: tuple[str, ...] = ()
    """Of each router: the first is the one on the internet. Empty: no router."""
    mapping: Mapping = Mapping.INDEPENDENT
    filtering: Filtering = Filtering.INDEPENDENT
    ipv6: bool = False
    """The host has an IPv6 address of its own, and no other."""
    shared: bool = False
    """Every two hosts of it stand behind one router."""
    port_mapping: bool = False
    """The router next to the host maps ports for who asks it: UPnP, PCP and NAT-PMP."""


PORT_RESTRICTED = FULL_CONE + ONLY_ANSWERS + HOST_FIREWALL

PROFILES = {
    each.name: each
    for each in (
        Profile(name="none", about="a public address"),
        Profile(
            name="full-cone",
            about="one mapping for all; lets everybody in",
            rules=(FULL_CONE + HOST_FIREWALL,),
        ),
        Profile(
            name="address-restricted",
            about="one mapping for all; lets in hosts that it was used to",
            rules=(FULL_CONE + ONLY_CONTACTED_ADDRESSES + HOST_FIREWALL,),
            filtering=Filtering.ADDRESS,
        ),
        Profile(
            name="port-restricted",
            about="one mapping for all; lets in answers only",
            rules=(PORT_RESTRICTED,),
            filtering=Filtering.PORT,
        ),
        Profile(
            name="masquerade-drop",
            about="a Linux router at home: plain masquerade, drops what strangers send",
            rules=(MASQUERADE + HOST_FIREWALL,),
            filtering=Filtering.PORT,
        ),
        Profile(
            name="masquerade",
            about="plain masquerade without a firewall: answers strangers with RST, remaps",
            rules=(MASQUERADE,),
            filtering=Filtering.PORT,
        ),
        Profile(
            name="symmetric",
            about="another random port for each destination; lets in answers only",
            rules=(SYMMETRIC + HOST_FIREWALL,),
            mapping=Mapping.DEPENDENT,
            filtering=Filtering.PORT,
        ),
        Profile(
            name="double",
            about="two layers: a router at home behind a provider's (both masquerade-drop)",
            rules=(MASQUERADE + HOST_FIREWALL, MASQUERADE + HOST_FIREWALL),
            filtering=Filtering.PORT,
        ),
        Profile(
            name="household",
            about="masquerade-drop before two hosts at a time",
            rules=(MASQUERADE + HOST_FIREWALL,),
            filtering=Filtering.PORT,
            shared=True,
        ),
        Profile(
            name="upnp",
            about="masquerade-drop with miniupnpd: maps ports by UPnP, PCP and NAT-PMP",
            rules=(PORT_MAPPING + HOST_FIREWALL,),
            filtering=Filtering.PORT,
            port_mapping=True,
        ),
        Profile(
            name="ipv6",
            about="IPv6 alone, behind a firewall that lets in answers only (RFC 6092)",
            rules=(ONLY_ANSWERS + HOST_FIREWALL,),
            filtering=Filtering.PORT,
            ipv6=True,
        ),
    )
}
