"""Seam 1: the operating system's network, with sockets and threads for bulk connections.

Entrance: `sockets.SocketNet`. The transport uses it through the Protocols of `base.py`.
"""
