"""The digest of the weights in memory: computed in the background, beside the step's microbatches.

Units:   seconds; version v = weights after v commits.
Errors:  WeightsLost for a digest that cannot be computed; the weights are kept.
"""

import asyncio
import contextlib
import math

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.signal import Signal
from p2pswarm.models.compute.base import Weights
from p2pswarm.run.averaging.base import Compute
from p2pswarm.server.commit_log import CommitLog, WeightsLost, lost_by
from p2pswarm.tensors.state_tree import root_of

FRESH_S = 60.0  # weights hashed a moment ago are not hashed again for a session that begins
HASHES_KEPT = 16  # versions: 5 KB each for 1 GB of state


class VersionDigest:
    """Hashes the weights of one replica, version by version.

    It is needed only when the next version is decided. Whatever changes the weights waits for it,
    so what is hashed is one version. A session that keeps the weights need not wait.
    """

    def __init__(
        self, log: CommitLog, weights: Weights, background: Compute, changed: Signal
    ) -> None:
        """`log` is told each digest; `changed` is fired when one is known, or has failed."""
        self._log, self._weights = log, weights
        self._background = background
        self._changed = changed
        self._hashing: asyncio.Task[None] | None = None
        self._fresh_until_s = -math.inf
        self._hashes: dict[int, tuple[bytes, ...]] = {}
        """The hashes of the pieces of the last versions, for newcomers."""
        self._tied: tuple[int, bytes] | None = None
        """The newest version that was hashed, and the digest of its tied tensor."""

    @property
    def under_way(self) -> bool:
        """Return whether the weights in memory are being hashed."""
        return self._hashing is not None and not self._hashing.done()

    def compute(self) -> None:
        """Begin with the weights as they are now."""
        self._fresh_until_s = -math.inf
        self._hashing = asyncio.ensure_future(self._hash())
        self._hashing.add_done_callback(_retrieve)

    async def known(self) -> None:
        """Wait until the digest is known: before that, nothing may change the weights."""
        if self._hashing is not None:
            await asyncio.shield(self._hashing)

    async def settled(self) -> None:
        """As `known`, whether it could be computed or not: what it was computed for is over."""
        with contextlib.suppress(WeightsLost):
            await self.known()
        self._hashing = None

    def pieces(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece of one of the last versions; None if it is not known."""
        return self._hashes.get(version)

    def tied(self, version: int) -> bytes:
        """The digest of a version's tied tensor; empty if there is none, or it is not known."""
        return self._tied[1] if self._tied is not None and self._tied[0] == version else b""

    def forget(self) -> None:
        """Another era has begun, which makes the same versions with other bits."""
        self._hashes = {}

    async def check(self) -> None:
        """Hash again what was kept, unless that was done a moment ago, or is being done.

        Raises NotServing for weights that have changed by themselves.
        """
        if self.under_way:
            return
        await self.settled()
        if asyncio.get_running_loop().time() >= self._fresh_until_s:
            self._log.unchanged(root_of(await self._background(self._weights.hashes)))

    async def _hash(self) -> None:
        try:
            weights = self._weights
            hashes, tied = await self._background(lambda: (weights.hashes(), weights.tied_digest()))
            self._log.hashed(root_of(hashes))
            self._fresh_until_s = asyncio.get_running_loop().time() + FRESH_S
            assert self._log.held is not None, "what is hashed does not change"
            self._hashes[version := self._log.held.version] = hashes
            self._tied = version, tied
            self._hashes.pop(version - HASHES_KEPT, None)
        except SwarmError as error:
            raise lost_by(error, "their digest could not be computed") from error
        finally:
            self._changed.fire()


def _retrieve(hashing: asyncio.Task[None]) -> None:
    """Take note of an error, even if nobody waits for the digest."""
    if not hashing.cancelled():
        hashing.exception()
