"""Whether a model computes in stages what it computes as a whole, tried on a small copy of it.

Entrance: `model_check.check_stages`. The trainer, servers of several devices and `p2pswarm
check-model` use it.
"""
