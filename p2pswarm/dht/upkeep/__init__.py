"""How a node gets into the DHT and stays in it."""
