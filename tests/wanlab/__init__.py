"""A wide-area network on one machine: hosts far apart, joined by links of our choice.

Each host is a network namespace with a TUN device, `wan0`. One process, the
emulator, holds the other end of all the devices and moves packets between
them as long, narrow and lossy links would. Nothing outlives the program that
opened the lab, not even after SIGKILL, and no address is seen outside it.

By hand, from the root of the repository:

    python -m tests.wanlab --hosts 2 --rate-mbit 200 --rtt-ms 100
    python -m tests.wanlab --rtt-ms 100 shell 0
    python -m tests.wanlab --loss 0.001 -- 1: iperf3 -s -1 + 0: iperf3 -c {1} -C cubic
    python -m tests.wanlab check

The first lists the hosts and how to enter them from another terminal. In a
command {0}, {1}, ... stand for the hosts' addresses, `N:` chooses the host (0
if nothing is said), and a lone + starts another command beside. The last one
decides when the lab ends. `check` measures whether the lab does what it says.

From Python:

    from tests.wanlab.lab import Lab
    from tests.wanlab.link import Link

    far = Link(rate_bits_per_s=200e6, delay_s=0.05, loss=0.001)
    with Lab(hosts=3, link=far) as lab:
        server = lab.popen(1, ["iperf3", "-s"])
        lab.set_link(Link(rate_bits_per_s=20e6, delay_s=0.15), source=0, to=1)
        lab.run(0, ["iperf3", "-c", lab.address(1)], check=True)
        print(lab.counts()[0, 1].wire_bytes)

Namespaces without a `wan0`, for whoever lays cables of his own, are opened with
`Lab(..., inner=3)`; `tests/natlab` does so.

It needs Linux, iproute2, util-linux, a readable /dev/net/tun and either root
or user namespaces; else `Lab` raises `LabUnavailable` with the reason.
"""
