"""A run before it is trained: choice, entry, model, text, folder, resume."""
