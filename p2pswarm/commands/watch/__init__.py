"""`p2pswarm watch`: a run that was logged, as it was seen live."""
