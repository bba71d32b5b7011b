"""One stage on several devices of one host: a process for each, and torch's own sharding inside.

Entrance: `group_stage.group_engine`. The roles use it where `serve.device` names several devices.
What it is, and what it is not for: docs/devices.md.
"""
