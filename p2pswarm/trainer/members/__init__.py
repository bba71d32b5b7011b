"""The members of a run as the coordinator knows them: where each serves, what it is blamed for."""
