"""The command `p2pswarm report`: an archive for a bug report, without a secret in it."""
