"""A stage server: it computes microbatches, forwards the results, and counts each once.

Entrance: `stage_server.StageServer`. Roles and the simulation use it.
"""
