"""p2pswarm: train one transformer on machines that are slow, far apart, and come and go."""
