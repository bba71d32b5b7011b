"""When the demo kills a server, and which: never the last ready one of its stage.

Units:   steps.
Errors:  none; a kill that would stop the run waits until a replica is ready.
"""

from random import Random

from p2pswarm.progress.history import RunHistory


class Kills:
    """Decides about kills; the demo carries them out."""

    def __init__(self, steps: int, every: int | None, rng: Random) -> None:
        self._every = every
        self._next_step = every if every is not None else max(1, steps // 2)
        self._steps = steps
        self._rng = rng

    def due(self, step: int) -> bool:
        """Whether a kill is due at `step`; after the last step none is."""
        return bool(self._next_step) and self._next_step <= step < self._steps

    def victim(self, history: RunHistory) -> str | None:
        """The short id of the server to kill now, or None if each is needed."""
        spare = [peer for stage in history.stages for peer in history.ready(stage)[1:]]
        if not spare:
            return None
        stage = self._rng.choice(sorted({peer.stage for peer in spare}))
        return self._rng.choice(history.ready(stage)).peer

    def done(self, step: int) -> None:
        """A server was killed at `step`."""
        self._next_step = step + self._every if self._every else 0
