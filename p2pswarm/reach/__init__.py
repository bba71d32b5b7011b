"""How peers reach each other: dial-back, port mapping, relays, and punching through NATs."""
