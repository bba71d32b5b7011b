"""Seam 3: the calls of a stage server to its processor, and their implementation on torch.

Entrance: `base.py`, `torch_weights.torch_engine`. Servers and the roles use it.
`reference.py` is the ordinary training loop to compare with.
"""
