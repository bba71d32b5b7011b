"""AnswerGathering: the answers to one read leave in one write.

The tasks that several events wake answer one after the other. Their answers wait for each other,
eight at most, until all of these tasks have run.

Units:   counts.
"""

GATHERED_MAX = 8  # so many answers to one read are sent together


class AnswerGathering:
    """Whether the answers of one link are gathered now."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0
        """Not 0 while answers are gathered: then call `holds_back` before they are sent."""

    def begin(self) -> bool:
        """Note that one read gave several events; returns whether to call `end` later."""
        if self.count:
            return False
        self.count = 1
        return True

    def end(self) -> None:
        """Note that the woken tasks have answered: send what waits."""
        self.count = 0

    def holds_back(self) -> bool:
        """Whether the answer that was just queued should wait for the others."""
        self.count += 1
        return self.count % GATHERED_MAX != 0
