"""The bulk connections of one link."""
