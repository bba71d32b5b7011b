"""The command `p2pswarm plan`: which device serves which stage."""
