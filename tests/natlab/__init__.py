"""NATs of every kind on one machine, and real nodes behind them.

Hosts and routers are network namespaces; the kernel's nftables translate addresses as the routers
of homes and providers do. The profiles: none, full-cone, address-restricted, port-restricted,
masquerade-drop, masquerade, symmetric, double, upnp, ipv6. docs/natlab.md has the details.

By hand, from the root of the repository:

    python -m tests.natlab --profiles symmetric,port-restricted
    python -m tests.natlab --delay-ms 25 --tries 5 --json matrix.json
    python -m tests.natlab --profiles upnp shell

The first starts nodes behind all pairs of these profiles and prints who reached whom, how, and how
fast; the last one lists the hosts and how to enter them from another terminal.

From Python:

    from tests.natlab.lab import NatLab

    with NatLab(["upnp", "symmetric"]) as lab:
        home = lab.sites[0]
        lab.run(home.host, ["ip", "route"], check=True)
        print(home.wan_address, lab.address(0))

It needs what the WAN lab needs (`tests/wanlab`), and nft; the profile upnp needs miniupnpd built
for nftables. Where something is missing, `NatLab` raises `LabUnavailable` with the reason.
"""

import sys
from pathlib import Path

# The WAN lab is found under one name, whether we are tests.natlab or pytest's natlab.
sys.path.insert(0, str(Path(__file__).parents[1]))
