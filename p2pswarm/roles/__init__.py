"""What a node can be; joined here from the parts, and taken up by `node.py`."""
