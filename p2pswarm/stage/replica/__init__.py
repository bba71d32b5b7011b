"""The weights of a stage: how they come, change and are passed on."""
