"""Ways to reach peers: dial-back, port mapping, relays, and punching through NATs."""
