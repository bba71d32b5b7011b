"""Links: one control connection and bulk connections to a peer, multiplexed."""
