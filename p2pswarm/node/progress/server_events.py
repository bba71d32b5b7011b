"""ServerEvents: the events of a server's own, for its log and its owner's page."""

from p2pswarm.checkpoint.names import RUN_HEX
from p2pswarm.node.progress.common_events import begun, line_of
from p2pswarm.node.progress.event_hub import EventHub
from p2pswarm.progress.events import Begun, Note, Peers, Serving
from p2pswarm.run.messages.membership import Load
from p2pswarm.settings.config import RunConfig


class ServerEvents:
    """What a server says, and what it tells its trainer of itself, as events."""

    def __init__(self, hub: EventHub, server: str, name: str, software: str) -> None:
        """`server`: its short peer id; `name`: of its machine."""
        self.hub = hub
        self._server = server
        self._name = name
        hub.tell(Begun("", "stage", name, software))

    def on_run(self, run: bytes, config: RunConfig) -> None:
        """It takes part in a run from now on."""
        self.hub.numbers.run = run.hex()[:RUN_HEX]
        self.hub.tell(begun(config, "stage", self._name, config.cut))

    def on_stage(self, stage: int) -> None:
        """It has a stage's weights, and serves it from now on."""
        self.hub.tell(Serving(self._server, stage, self._name))

    def on_load(self, stage: int, load: Load) -> None:
        """It tells its trainer how busy it is."""
        self.hub.tell(Peers((line_of(self._server, stage, load),)))

    def on_line(self, line: str) -> None:
        """It says something to its user."""
        self.hub.tell(Note(line))
