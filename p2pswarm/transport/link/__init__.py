"""A link to one peer: streams for messages, rooms for tensors."""
