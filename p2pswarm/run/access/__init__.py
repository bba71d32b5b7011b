"""Access: who may take part in a run, and as what; docs/closed_runs.md.

`rpc_guard.py` is the entrance: calls and handlers of a run, for its members alone. `node/` uses
it.
"""
