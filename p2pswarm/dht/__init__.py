"""The DHT, after Kademlia: who is near a key, and what is stored there.

Entrance: `node.Dht`. Roles use it; docs/dht.md explains it.
"""
