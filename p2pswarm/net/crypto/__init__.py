"""The identity of a node, the Noise handshake, and sealed records.

Entrance: `identity.Identity`, `handshake.Handshake`, `records.Sealer` and `Opener`. The
transport uses them; the DHT and manifests sign with identities.
"""
