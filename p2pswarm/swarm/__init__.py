"""What a run's members say to each other, and the wiring between stages."""
