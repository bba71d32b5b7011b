"""What people and programs are told of a run: reports, status, curves."""
