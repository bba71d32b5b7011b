"""The calls of servers that cannot read the manifest, and when the trainer's user hears of them.

Units:   seconds on the loop's clock.
Errors:  none.
"""

import asyncio
from collections.abc import Callable

from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.run.messages.run import OtherVersion
from p2pswarm.trainer.coordinator.outputs import Report
from p2pswarm.trainer.members.version_refusals import VersionRefusals


class RefusalNotices:
    """Serves those calls from the start on."""

    def __init__(self, rpc: Rpc, report: Callable[[Report], None]) -> None:
        self._refusals = VersionRefusals()
        self._report = report
        self._timer: asyncio.TimerHandle | None = None
        rpc.serve_unary(OtherVersion, self._refused)

    def close(self) -> None:
        """The run is over: nothing more is told."""
        self._refusals.close()
        self._plan()

    def _refused(self, peer: PeerId, notice: OtherVersion) -> OtherVersion:
        """A server cannot read our manifest."""
        self._refusals.receive(peer, notice.speaks, asyncio.get_running_loop().time())
        self._plan()
        return OtherVersion(self._refusals.ours)

    def _plan(self) -> None:
        for report in self._refusals.events():
            self._report(report)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due_s := self._refusals.next_deadline_s()) is not None:
            self._timer = asyncio.get_running_loop().call_at(due_s, self._due)

    def _due(self) -> None:
        self._refusals.on_deadline(asyncio.get_running_loop().time())
        self._plan()
