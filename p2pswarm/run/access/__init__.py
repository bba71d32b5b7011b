"""Closed runs: who may take part in a run whose owner has closed it; docs/closed_runs.md.

`rpc_guard.py` is the entrance: calls and handlers of a run, for its members alone. `node/` uses
it.
"""
