"""Reports: what the coordinator tells its trainer, and the actions that it asks for."""
