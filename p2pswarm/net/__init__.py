"""Seam 1: the operating system's network. Sockets, and the threads that drive bulk sockets.

Entrance: `sockets.SocketNet`. The transport uses it through the Protocols of `base.py`.
"""
