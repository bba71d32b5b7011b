"""Which files of a data set of the hub are read: its card, and the names of its files."""
