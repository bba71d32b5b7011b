"""The devices of each stage: costs of an iteration, and solvers that say how good they are.

Entrance: `dtfm_search.search`, `pipeline_search.search_pipelined`, and `moves.Rebalancing` for a
run that goes on. The solvers need `pip install '.[plan]'` in the clone.
"""
