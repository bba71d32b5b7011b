"""Seam 1, the network: sockets, and the threads that drive bulk sockets."""
