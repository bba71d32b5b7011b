"""What the coordinator asks of others: launches, fences, reductions, commits."""
