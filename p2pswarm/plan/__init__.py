"""Which device serves which stage: costs of an iteration, and solvers that say how good they are.

Nothing here opens a file or a socket. The solvers need `pip install p2pswarm[plan]`. Used by the
command `p2pswarm plan`; entrance: `dtfm_search.py`.
"""
