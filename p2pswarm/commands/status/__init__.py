"""The commands `p2pswarm status` and `p2pswarm explain`."""
