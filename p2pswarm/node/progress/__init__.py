"""Progress of a run for people and programs: reports, status, curves."""
