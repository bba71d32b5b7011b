"""Tensors on the wire: announced, granted or refused, sent in chunks, encoded by codecs.

Entrance: `transfer.TensorTransfer`. Servers, trainers and averaging use it.
"""
