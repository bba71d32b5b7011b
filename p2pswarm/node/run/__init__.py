"""What a node does about a run before it trains: choice, entry, model, text, folder, resume."""
