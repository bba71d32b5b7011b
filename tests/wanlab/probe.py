"""What runs inside the hosts when the lab measures itself: echo, TCP source, TCP sink.

A plain script without imports of ours, started by `measure.py`. Servers take
any free port and print it; results are printed as one line of JSON.

Units:   seconds, bytes.
"""

import argparse
import json
import select
import socket
import struct
import sys
import time

CHUNK_BYTES = 1 << 20
PING_PERIOD_S = 0.02
PING_PATIENCE_S = 5.0
_TCP_RETRANSMITS = struct.Struct("=I")
_TCP_RETRANSMITS_AT = 100  # tcpi_total_retrans in struct tcp_info


def echo() -> None:
    """Send every datagram back to where it came from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("", 0))
        print(sock.getsockname()[1], flush=True)
        while True:
            data, sender = sock.recvfrom(65536)
            sock.sendto(data, sender)


def ping(host: str, port: int, count: int) -> None:
    """Time `count` datagrams there and back, one at a time."""
    round_trips_s = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(PING_PATIENCE_S)
        sock.connect((host, port))
        for i in range(count):
            time.sleep(PING_PERIOD_S)
            begin_s = time.monotonic()
            sock.send(i.to_bytes(4))
            while sock.recv(64) != i.to_bytes(4):
                pass
            round_trips_s.append(time.monotonic() - begin_s)
    print(json.dumps(round_trips_s))


def sink(connections: int, warmup_s: float) -> None:
    """Take what comes until all connections end; count what came after the warm-up."""
    with socket.create_server(("", 0)) as server:
        print(server.getsockname()[1], flush=True)
        open_socks = [server.accept()[0] for _ in range(connections)]
    room = bytearray(CHUNK_BYTES)
    begin_s = time.monotonic() + warmup_s
    counted = 0
    last_s = begin_s
    while open_socks:
        for sock in select.select(open_socks, (), ())[0]:
            try:
                taken = sock.recv_into(room)
            except ConnectionResetError:  # the source leaves without goodbye
                taken = 0
            if not taken:
                sock.close()
                open_socks.remove(sock)
                continue
            now_s = time.monotonic()
            if now_s >= begin_s:
                counted += taken
                last_s = now_s
    print(json.dumps({"bytes": counted, "seconds": last_s - begin_s}))


def source(host: str, port: int, connections: int, seconds: float, congestion: str) -> None:
    """Send zeros as fast as TCP allows for so long, then say how often TCP had to repeat."""
    socks = []
    for _ in range(connections):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        sock.connect((host, port))
        sock.setblocking(False)
        socks.append(sock)
    zeros = bytes(CHUNK_BYTES)
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        for sock in select.select((), socks, (), left_s)[1]:
            sock.send(zeros)
    repeated = 0
    for sock in socks:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        repeated += _TCP_RETRANSMITS.unpack_from(info, _TCP_RETRANSMITS_AT)[0]
        # What still waits is dropped: a link that loses 1 % would take minutes for it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    print(json.dumps({"retransmits": repeated}))


def main() -> None:
    """Be what the command line says."""
    parser = argparse.ArgumentParser()
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("echo")
    pinger = parts.add_parser("ping")
    pinger.add_argument("host")
    pinger.add_argument("port", type=int)
    pinger.add_argument("--count", type=int, default=50)
    taker = parts.add_parser("sink")
    taker.add_argument("--connections", type=int, default=1)
    taker.add_argument("--warmup-s", type=float, default=0.0)
    giver = parts.add_parser("source")
    giver.add_argument("host")
    giver.add_argument("port", type=int)
    giver.add_argument("--connections", type=int, default=1)
    giver.add_argument("--seconds", type=float, default=10.0)
    giver.add_argument("--congestion", default="bbr")
    options = vars(parser.parse_args())
    {"echo": echo, "ping": ping, "sink": sink, "source": source}[options.pop("part")](**options)


if __name__ == "__main__":
    sys.exit(main())
