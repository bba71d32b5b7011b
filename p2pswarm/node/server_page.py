"""ServerPage: what a server says of itself to its owner, and to probes."""

import math
from collections.abc import Callable
from typing import Any

from p2pswarm.node.stack.stack import NodeStack
from p2pswarm.progress.event_lines import EventLine
from p2pswarm.progress.events import Begun, Peers
from p2pswarm.progress.servers_view import plain_number
from p2pswarm.server.stage_server import StageServer
from p2pswarm.web.health import HealthAnswer
from p2pswarm.web.own_figures import ShareOfWork


class ServerPage:
    """The part YOU of a server's page, where it has one, and whether the server serves."""

    def __init__(self, stack: NodeStack, device: str, clock: Callable[[], float]) -> None:
        self._device = device
        self._clock = clock
        self._server: StageServer | None = None
        self._begun: Begun | None = None
        self._rate_per_s = 0.0
        self._share = ShareOfWork()
        self._look: Callable[[], object] = lambda: None
        stack.health.of_role = self._ready
        if stack.page is not None:
            stack.page.of_role = self._own
            self._look = stack.page.page.look
            stack.page.page.look = self._looks

    def begin(self, server: StageServer) -> None:
        """This server serves from now on."""
        self._server = server

    def on_event(self, told: EventLine) -> None:
        """Take an event of the server's own."""
        match told.event:
            case Begun(stages=stages) if stages:
                self._begun = told.event
            case Peers(peers=(line, *_)):
                self._rate_per_s = line.rate_per_s

    def _looks(self) -> None:
        self._look()
        version = None if self._server is None else self._server.version
        self._share.on_version(version, self._clock())

    def _ready(self) -> HealthAnswer:
        server = self._server
        if server is None or server.seeker.end is not None:
            return HealthAnswer(ok=False, why="serves no run")
        if server.seeker.seeks:
            return HealthAnswer(ok=False, why="looks for the trainer")
        if server.version is None:
            percent = math.floor(100 * server.weights_share)
            why = f"fetches the weights of its stage: {percent} % are here"
            return HealthAnswer(ok=False, why=why)
        return HealthAnswer(ok=True, why="serves")

    def _own(self) -> dict[str, Any]:
        server, begun, ready = self._server, self._begun, self._ready()
        serves = ready.ok
        return {
            "state": ready.why,
            "device": self._device,
            "run": begun.run_name if begun else "",
            "stages": begun.stages if begun else 0,
            "stage": server.stage if server and serves else None,
            "version": server.version if server else None,
            "share": self._share.share(self._rate_per_s, begun.microbatches) if begun else None,
            "unheard_s": plain_number(server.leadership.unheard_s()) if server and serves else None,
        }
