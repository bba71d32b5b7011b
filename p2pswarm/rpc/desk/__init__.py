"""The handlers that serve peers, counted and owned."""
