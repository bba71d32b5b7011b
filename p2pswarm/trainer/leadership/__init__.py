"""Which trainer leads, how a standby takes over, and how a run rolls back to an older record.

Entrance: `participant.Trainer`.
"""
