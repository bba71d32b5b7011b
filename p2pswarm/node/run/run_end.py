"""The end of a run, told apart from the end of its trainer.

A trainer says that its run is over when the last step is decided and the weights are written: on
the stream of each server, and in a record of the DHT that it has signed, for those who are away.
Such a word is believed only with a proof. A server has one if its own weights have seen the last
step, or its vote knows the record that decides it, or if the decided records name the speaker as a
trainer of the run. A trainer that fails, leaves or is gone says nothing of the kind: the run may
go on.
"""

from dataclasses import dataclass

from p2pswarm.run.chain.chain import ChainHead


@dataclass(frozen=True, slots=True)
class KnownRun:
    """What a server itself knows of a run."""

    run: bytes
    steps: int
    """Of the run's settings."""
    version: int | None
    """Of its own weights; None if it has none."""
    head: ChainHead
    """Of the decided records that its vote knows."""

    @property
    def decided(self) -> int:
        """How many steps are done, for sure."""
        return max(self.version or 0, self.head.version)

    def is_over(
        self, said_by: bytes | None, run: bytes, version: int | None, *, on_purpose: bool = False
    ) -> bool:
        """Return whether this word proves the end of the run.

        Args:
            said_by: The peer id of the speaker, which its link or its signature proves.
            run: The run that it speaks of.
            version: The number of steps that are done, as it says; None: it does not say.
            on_purpose: It says that its owner ends the run before its last step.
        """
        if on_purpose and run == self.run:
            return version is not None and said_by in self.head.trainers
        if run != self.run or (version is not None and version < self.steps):
            return False
        return self.decided >= self.steps or (version is not None and said_by in self.head.trainers)
