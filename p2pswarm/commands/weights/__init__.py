"""Commands on trained weights: generate, evaluate, export; and the check of a model."""
