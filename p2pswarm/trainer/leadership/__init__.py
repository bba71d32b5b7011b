"""Which trainer leads, how a standby takes over, and how a run returns to an older record.

Entrance: `trainer.Trainer`.
"""
