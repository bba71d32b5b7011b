"""The coordinator's part in load balance: loads, moves, and what they cost."""
