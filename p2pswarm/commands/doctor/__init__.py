"""The command `p2pswarm doctor`: what is wrong with this machine's network."""
