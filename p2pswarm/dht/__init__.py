"""The DHT, after Kademlia: which peers are close to a key, and what is stored there.

Entrance: `node.Dht`. The roles use it, and so do simulations; docs/dht.md explains it.
"""
