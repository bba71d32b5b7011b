"""Attention of documents that share a row: each sees itself alone, and no mask has T x T places.

Entrance: `document_attention.py`. `band_attention.py` is for what torch's kernels have not.
"""
