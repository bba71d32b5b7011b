"""Seeds that fail today, and why. A seed leaves this list when its cause is mended."""

KNOWN_FAILURES: dict[int, str] = {}
KNOWN_AIMED_FAILURES: dict[int, str] = {}
