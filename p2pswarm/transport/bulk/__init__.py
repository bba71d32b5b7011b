"""The bulk connections of a link: tensors in chunks, straight from and into their memory.

Entrance: `channels.BulkChannels`. Only `transport/` uses it.
"""
