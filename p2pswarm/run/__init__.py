"""What the members of a run share: messages, the router, pushes, views, the manifest.

Entrance: `push_io.push_to_any`, `router.Router`, `view.MemberView`. Servers and trainers use it.
"""
