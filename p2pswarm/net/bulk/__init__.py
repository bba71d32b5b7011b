"""The bulk connections of a link: tensors in chunks, sent from and received into their memory.

Entrance: `channel_set.BulkChannels`. The endpoint uses it.
"""
