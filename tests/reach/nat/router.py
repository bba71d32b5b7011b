"""A home behind a real router, in network namespaces of one process that lives as long as a test.

`python -m nat.router FEATURES` is to be started by `in_namespaces`: it becomes the router, with a
home (`home`, 192.168.77.5) on one side and the Internet (`world`, 5.5.5.9) on the other, starts
miniupnpd with the features, and runs the command that follows in the home. All is gone with it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OWN, GATEWAY, OUTSIDE, WORLD = "192.168.77.5", "192.168.77.1", "5.5.5.1", "5.5.5.9"
OWN6, GATEWAY6, OUTSIDE6, WORLD6 = "2a00:77::5", "2a00:77::1", "2a00:5::1", "2a00:5::9"
"""IPv6 is not translated: the router is a firewall."""
WORLDS = ("6.6.6.9", "7.7.7.9")
NEEDS = {"unshare": "util-linux", "ip": "iproute2", "nft": "nftables"}
NFT = """
table inet hostfw {
    chain input {
        type filter hook input priority filter; policy accept;
        iifname "wan0" ct state established,related accept
        iifname "wan0" meta l4proto ipv6-icmp accept
        iifname "wan0" drop
    }
}
table inet filter {
    chain miniupnpd { }
    chain forward {
        type filter hook forward priority filter; policy drop;
        iifname "lan0" accept
        ct state established,related accept
        jump miniupnpd
    }
    chain prerouting_miniupnpd { }
    chain postrouting_miniupnpd { }
    chain prerouting {
        type nat hook prerouting priority -100; policy accept;
        jump prerouting_miniupnpd
    }
    chain postrouting {
        type nat hook postrouting priority 100; policy accept;
        jump postrouting_miniupnpd
        oifname "wan0" ip saddr 192.168.77.0/24 masquerade MAPPING
    }
}
"""
CONF = f"""
ext_ifname=wan0
ext_ip={OUTSIDE}
listening_ip=lan0
enable_natpmp={{datagrams}}
enable_upnp={{upnp}}

upnp_table_name=filter
upnp_nat_table_name=filter
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
secure_mode=yes
uuid=00000000-0000-0000-0000-000000000001
allow 1024-65535 192.168.77.0/24 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""
RULES = Path("/run/rules.nft")
FORGOTTEN = Path("/run/forgotten")
"""There when a router that was started again has lost what it promised."""


def require_router(*, daemon: bool = True) -> None:
    """Skip the test, with the reason, where there can be no router."""
    needs = {**NEEDS, **({"miniupnpd": "miniupnpd-nftables"} if daemon else {})}
    for program, package in needs.items():
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"there is no {program}: apt install {package}")
    look = [*_unshare(), "nft", "list", "ruleset"]
    trial = subprocess.run(look, check=False, capture_output=True, env=ENV)
    if trial.returncode:
        pytest.skip(f"no network namespaces here: {trial.stderr.decode().strip()}")


PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
ENV = {**os.environ, "PATH": PATH, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}


def _unshare() -> list[str]:
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--pid", "--fork", "--kill-child"]


def in_namespaces(features: str, module: str, *arguments: str, timeout_s: float = 60.0) -> dict:
    """Run a module in the home; returns the JSON object of its last line."""
    command = [*_unshare(), sys.executable, "-m", "reach.nat.router", features, module, *arguments]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=ENV, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict = json.loads(done.stdout.strip().splitlines()[-1])
    found["stderr"] = done.stderr
    return found


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def build(*, hard: bool) -> None:
    """Make the namespaces, and the router's rules; `hard`: each call has an outside port."""
    for at in ("/run", "/etc/miniupnpd", "/var/lib"):
        if Path(at).exists():
            _do("mount", "-t", "tmpfs", "none", at)
    Path("/run/netns").mkdir(parents=True)
    _do("ip", "link", "set", "lo", "up")
    for name, device, ours, theirs in (
        ("home", "lan0", GATEWAY, OWN),
        ("world", "wan0", OUTSIDE, WORLD),
    ):
        _do("ip", "netns", "add", name)
        _do("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name)
        _do("ip", "addr", "add", f"{ours}/24", "dev", device)
        _do("ip", "link", "set", device, "up")
        _do("ip", "-n", name, "addr", "add", f"{theirs}/24", "dev", "eth0")
        _do("ip", "-n", name, "link", "set", "eth0", "up")
        _do("ip", "-n", name, "link", "set", "lo", "up")
    for name, device, ours, theirs in (
        ("home", "lan0", GATEWAY6, OWN6),
        ("world", "wan0", OUTSIDE6, WORLD6),
    ):
        _do("ip", "addr", "add", f"{ours}/64", "dev", device, "nodad")
        _do("ip", "-n", name, "addr", "add", f"{theirs}/64", "dev", "eth0", "nodad")
        _do("ip", "-n", name, "route", "add", "default", "via", ours)
    for more in WORLDS:  # networks of their own: a group of addresses has one vote
        _do("ip", "-n", "world", "addr", "add", f"{more}/32", "dev", "eth0")
        _do("ip", "route", "add", f"{more}/32", "dev", "wan0")
    _do("ip", "-n", "home", "route", "add", "default", "via", GATEWAY)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
    RULES.write_text(NFT.replace("MAPPING", "fully-random" if hard else ""))
    _do("nft", "-f", str(RULES))


def main() -> int:
    """Be the router, and run a module in the home."""
    features, module, *arguments = sys.argv[1:]
    build(hard=features == "hard")
    daemon = None if features in ("none", "hard") else start_daemon(features.split("+"))

    def restart(*_: object) -> None:
        """What a power cut does to a router; whoever runs in the home asks for it by a signal."""
        nonlocal daemon
        assert daemon is not None
        daemon.terminate()
        daemon.communicate()
        _do("nft", "flush", "ruleset")
        _do("nft", "-f", str(RULES))
        FORGOTTEN.touch()
        daemon = start_daemon(features.split("+"))

    signal.signal(signal.SIGUSR1, restart)
    inside = ["ip", "netns", "exec", "home", sys.executable, "-m", module, *arguments]
    code = subprocess.run(inside, check=False).returncode
    if daemon is not None:
        daemon.terminate()
        said = daemon.communicate()[0]
        if code:
            sys.stderr.write(said)
    return code


def start_daemon(features: list[str]) -> "subprocess.Popen[str]":
    """Start miniupnpd, and wait until it says that it listens."""
    datagrams = "pcp" in features or "natpmp" in features
    switches = {"datagrams": datagrams, "upnp": "upnp" in features}
    conf = Path("/run/miniupnpd.conf")
    conf.write_text(CONF.format(**{name: "yes" if on else "no" for name, on in switches.items()}))
    if datagrams and "pcp" not in features:
        _do("nft", "insert rule inet hostfw input iifname lan0 udp dport 5351 @th,64,8 2 drop")
    if not datagrams:  # it answers PCP over IPv6 whatever its file says
        _do("nft", "insert rule inet hostfw input iifname lan0 udp dport 5351 reject")
    command = ["miniupnpd", "-d", "-f", str(conf), "-P", "/run/upnp.pid"]
    daemon = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    assert daemon.stdout is not None
    said = []
    for line in daemon.stdout:
        said.append(line)
        if (READY["datagrams"] if datagrams else READY["upnp"]) in line:
            return daemon
    sys.exit("miniupnpd does not start: " + "".join(said))


READY = {"datagrams": "Listening for NAT-PMP", "upnp": "HTTP listening"}


if __name__ == "__main__":
    sys.exit(main())
