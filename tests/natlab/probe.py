"""What runs inside the hosts when the lab looks at its NATs: it asks, answers and knocks.

A plain script without imports of ours, told what to do by `classify.py`: one line of JSON in, one
line out. Each port that it opens is open for UDP and TCP. It tells whoever asks there how the
asker looks from outside, and notes who knocks.

Units:   seconds.
"""

import json
import queue
import random
import socket
import struct
import sys
import threading
import time

ANSWER_S = 10.0  # for answers that surely come: only a busy machine makes them late
WHO, YOU, KNOCK = b"who", b"you ", b"knock"
PUNCH_PAUSE_S = 0.1  # at most; a round trip or two
MAP_PORT = 5351
NAT_PMP_PUBLIC_ADDRESS = b"\0\0"  # version 0, opcode 0 (RFC 6886 3.2)
NAT_PMP_FIRST_S = 0.25  # then twice as long each time (RFC 6886 3.1)


class Port:
    """A number, open for UDP and TCP."""

    def __init__(self, family):
        self.family = family
        self.listener = self.tcp_socket(0)
        self.number = self.listener.getsockname()[1]
        self.listener.listen()
        self.udp = socket.socket(family, socket.SOCK_DGRAM)
        self.udp.bind(("", self.number))
        self.answers = queue.Queue()
        self.knocks = []
        self.connections = []
        self.callers = []
        threading.Thread(target=self.serve_udp, daemon=True).start()
        threading.Thread(target=self.serve_tcp, daemon=True).start()

    def tcp_socket(self, number):
        """A socket at a port that several sockets share, as punching needs it."""
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(("", number))
        return sock

    def serve_udp(self):
        while True:
            data, sender = self.udp.recvfrom(2048)
            if data == WHO:
                self.udp.sendto(YOU + json.dumps(sender[:2]).encode(), sender)
            elif data == KNOCK:
                self.knocks.append(sender[:2])
            else:
                self.answers.put(json.loads(data.removeprefix(YOU)))

    def serve_tcp(self):
        while True:
            connection, sender = self.listener.accept()
            self.connections.append(connection)
            self.callers.append(sender[0])
            connection.sendall(json.dumps(sender[:2]).encode() + b"\n")

    def ask(self, kind, to):
        """How our port looks from there."""
        if kind == "udp":
            self.udp.sendto(WHO, to)
            return self.answers.get(timeout=ANSWER_S)
        sock = self.tcp_socket(self.number)
        sock.settimeout(ANSWER_S)
        sock.connect(to)
        self.connections.append(sock)  # a closed one would end what the NAT knows of it
        with sock.makefile() as lines:
            return json.loads(lines.readline())

    def punch(self, to, limit_s):
        """How a TCP connection with `to` came up, when both sides dial: None if it did not.

        Who is refused tries again after a random pause: two that pause alike may miss each other
        for ever.
        """
        begin_s = time.monotonic()
        while (left_s := begin_s + limit_s - time.monotonic()) > 0:
            sock = self.tcp_socket(self.number)
            sock.settimeout(left_s)
            try:
                sock.connect(to)
            except OSError as error:
                # a reset, or the same pair of ports is in use: the other one has come in
                sock.close()
                if to[0] in self.callers:
                    return "accepted"
                if isinstance(error, TimeoutError):
                    return None
                time.sleep(random.uniform(0, PUNCH_PAUSE_S))
            else:
                self.connections.append(sock)
                return "dialled"
        return None

    def knock(self, kind, to, patience_s):
        """Whether a connection from another port of ours gets in; of a datagram nobody can know."""
        if kind == "udp":
            self.udp.sendto(KNOCK, to)
            return "sent"
        with socket.socket(self.family, socket.SOCK_STREAM) as sock:
            sock.settimeout(patience_s)
            try:
                sock.connect(to)
            except TimeoutError:
                return "silence"
            except ConnectionRefusedError:
                return "refused"
            return "open"


def ask_gateway(gateway):
    """The public address that a router names by NAT-PMP; None if it says nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((gateway, MAP_PORT))
        wait_s = NAT_PMP_FIRST_S
        while wait_s < ANSWER_S:
            sock.settimeout(wait_s)
            wait_s *= 2
            try:
                sock.send(NAT_PMP_PUBLIC_ADDRESS)
                reply = sock.recv(64)
            except TimeoutError:
                continue
            except ConnectionRefusedError:  # the daemon has not opened its port yet
                time.sleep(NAT_PMP_FIRST_S)
                continue
            _, _, result, _, address = struct.unpack("!BBHI4s", reply)
            return [result, socket.inet_ntoa(address)]
    return None


def main():
    """Obey until the other end of stdin is closed."""
    ports = {}
    for line in sys.stdin:
        order = json.loads(line)
        port = ports.get(order.get("port"))
        to = tuple(order.get("to", ()))
        if order["do"] == "open":
            port = Port(socket.AF_INET6 if order["ipv6"] else socket.AF_INET)
            ports[port.number] = port
            told = port.number
        elif order["do"] == "ask":
            told = port.ask(order["kind"], to)
        elif order["do"] == "knock":
            told = port.knock(order["kind"], to, order["patience_s"])
        elif order["do"] == "punch":
            told = port.punch(to, order["limit_s"])
        elif order["do"] == "knocks":
            told = port.knocks
        else:
            told = ask_gateway(order["gateway"])
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
