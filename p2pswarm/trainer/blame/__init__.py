"""Whose fault a failure is: pairs that cannot reach each other, servers that fail often."""
