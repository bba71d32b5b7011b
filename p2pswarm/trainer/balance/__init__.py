"""The coordinator's part in load balance: loads, moves and their costs, stages without servers."""
