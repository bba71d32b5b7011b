"""The command `p2pswarm data`: what a run's text becomes."""
