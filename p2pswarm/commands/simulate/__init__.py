"""The command `p2pswarm simulate`: a day of a swarm in virtual time."""
