"""Bytes: frames cut from a stream, typed messages with hard limits."""
