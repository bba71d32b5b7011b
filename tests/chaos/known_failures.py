"""Seeds that fail today, and why. A seed leaves this list when its cause is mended."""

AWAY = "a stage without a ready server for 30 s ends the run, though its server is alive"

KNOWN_FAILURES: dict[int, str] = {9: AWAY}
