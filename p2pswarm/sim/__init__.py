"""The same code in virtual time, seeded."""
