"""The types of flags: texts of the command line as numbers.

Units:   seconds.
Errors:  argparse.ArgumentTypeError, which argparse reports in one line.
"""

import argparse

DAY_S = 86_400
TIME_UNITS = {"m": 60, "h": 3_600, "d": DAY_S, "w": 7 * DAY_S}
LASTS_MAX_S = 3_650 * DAY_S


class whole:  # noqa: N801 - reads as the type of an argument
    """A whole number from low to high."""

    def __init__(self, low: int, high: int) -> None:
        self._low = low
        self._high = high

    def __call__(self, text: str) -> int:
        """Read the number; argparse reports the error in one line."""
        number = int(text) if text.isascii() and text.isdigit() else -1
        if not self._low <= number <= self._high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {self._low} to {self._high}"
            )
        return number


def duration(text: str) -> int:
    """A time such as 12h or 7d, in seconds; argparse reports the error in one line."""
    number, unit = text[:-1], TIME_UNITS.get(text[-1:], 0)
    lasts_s = int(number) * unit if number.isascii() and number.isdigit() else 0
    if not 0 < lasts_s <= LASTS_MAX_S:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time such as 12h, 7d or 4w, of ten years at most"
        )
    return lasts_s
