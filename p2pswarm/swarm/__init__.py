"""What the members of a run share: messages, the router, pushes, views, the manifest.

Servers and trainers use it.
"""
