"""The DHT, a Kademlia: which peers are close to a key, and which values are stored there.

Entrance: `node.Dht`. The roles and simulations use it; docs/dht.md explains it.
"""
