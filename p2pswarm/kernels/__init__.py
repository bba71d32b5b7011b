"""Loops that numba compiles: those of codecs and of rounding, which torch runs in many passes.

Entrance: `loader.kernels`, for the loops; `jit.compiled`, for functions elsewhere.
"""
