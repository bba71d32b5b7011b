"""The network of a node: from the operating system's sockets up to typed calls between peers.

Entrances: `endpoint/endpoint.py` for links, `rpc/base.py` for the calls that all above use.
"""
