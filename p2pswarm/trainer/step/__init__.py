"""One step: its microbatches in flight, the ledger, fences, quarantine, spot checks."""
