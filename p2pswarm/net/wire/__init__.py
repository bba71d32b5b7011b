"""The bytes of messages: frames cut from a byte stream, and typed messages with hard limits.

Entrance: `message.py`. Every module that defines messages uses it.
"""
