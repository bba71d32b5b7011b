"""A step: microbatches in flight, the ledger, fences, guards, sums, attempts to average them."""
