"""The reduction of a step: averaging attempts, digests, and the commit."""
