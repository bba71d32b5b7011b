"""Leadership of a run: a trainer leads, a standby takes over, a run rolls back to an older record.

Entrance: `participant.Trainer`.
"""
