"""Kademlia: who is near a key, and what is stored there."""
