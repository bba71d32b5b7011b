"""A stage server: blocks of the model on a compute thread, and their ledger."""
