"""Seam 3: what a stage server asks of its processor, and its implementation on torch.

Entrance: `base.py`, `torch_weights.torch_engine`. Servers and the roles use it.
`reference.py` is the plain loop to compare with.
"""
