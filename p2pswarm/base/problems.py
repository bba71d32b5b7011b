"""Problems: all that is wrong, a line each, where a check does not end at the first."""

import contextlib
from collections.abc import Iterator

from p2pswarm.base.errors import SwarmError


class Problems:
    """Collects what trials raise."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        """In order; two trials may meet the same fault."""

    @property
    def lines(self) -> list[str]:
        """The problems so far."""
        return list(self._lines)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note the error of this block, which ends with it."""
        try:
            yield
        except SwarmError as error:
            self._lines[str(error)] = None
