"""The pump of the DHT: machines say whom to ask, this asks."""
