"""Discovery: the DHT finds peers and values; gossip spreads the directory of a run."""
