"""Handing a microbatch to another server."""
