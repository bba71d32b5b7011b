"""Tensors between peers: announced, granted or refused, encoded by codecs, sent in chunks.

Entrance: `transfer.TensorTransfer`. Servers, trainers and averaging use it.
"""
