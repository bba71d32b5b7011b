"""A stage server, for programs."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from p2pswarm.api.node import Node, load_role
from p2pswarm.node.shutdown import LeaveRequest
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import from_values

log = logging.getLogger(__name__)

LEFT = "left"  # the same reason as of a server that leaves a run


class Server:
    """Serves one stage of a run: the stage that needs a server most. A node has one server.

    Args:
        node: A node that is up.
        run: The name of the run; empty: the first run that is found.
        device: A torch device such as `cpu` or `cuda:0`; `auto`: the GPU if there is one.
        threads: Torch's threads, for the whole process; 0 leaves torch's own choice.
        graph_mib: Memory, in MiB, for what a forward pass keeps for its backward pass; 0: half of
            what a GPU has free, 1 GiB of a host.
        pretrained: A folder with a model's safetensors files, for a run that starts from them; or
            "hf:OWNER/NAME", to download a stage's part of that model of the hub.

    Raises:
        ValueError: A setting is not allowed; the message names it and what is.
    """

    def __init__(
        self,
        node: Node,
        *,
        run: str = "",
        device: str = "auto",
        threads: int = 0,
        graph_mib: int = 0,
        pretrained: str | Path = "",
    ) -> None:
        values = {
            "run": run,
            "device": device,
            "threads": threads,
            "graph_mib": graph_mib,
            "pretrained": str(pretrained),
        }
        self._serve = from_values(ServeConfig, values, "serve")
        self._node = node
        self._server: Any = None
        """A `StageServer`, whose import loads torch."""
        self._leaving = LeaveRequest()

    @property
    def stage(self) -> int | None:
        """The stage that is served, from 0; None before the trainer has given one."""
        stage: int | None = self._server.stage if self._server else None
        return stage

    @property
    def version(self) -> int | None:
        """Return how many steps the weights have seen; None while there are none."""
        version: int | None = self._server.version if self._server else None
        return version

    async def serve(self) -> str:
        """Wait for the run, serve it until it ends or `leave` is called, and return the reason.

        A run that cannot be served here is passed over, and another one waited for, unless the node
        is invited to it. A trainer that is gone is looked for until `leave` is called, or until a
        trainer of another run of this name is found. If this call is cancelled, the server ends as
        in a crash: others replay what it had counted in the step.

        Raises:
            p2pswarm.base.errors.Unusable: Torch has no such device, or the run that the node is
                invited to cannot be served here.
        """
        stack = self._node.stack
        settings = dataclasses.replace(stack.config, serve=self._serve)
        stack = dataclasses.replace(stack, config=settings)
        role = await load_role("stage")
        device = role.chosen_device(self._serve)
        choice = role.run_choice(settings, stack.identity.peer_id)
        threads = role.StageThreads()
        hub = role.EventHub(role.numbers_of(b"", stack.identity.peer_id))
        shown, events = role.shown_server(stack, device, hub)

        def begins(server: Any) -> None:
            self._server = server
            shown.begin(server)

        try:
            served = await role.serve_next(
                stack, choice, threads, device, self._leaving, log.info, begins, events
            )
        finally:
            threads.close()
        return served.reason if served is not None else LEFT

    def leave(self) -> None:
        """Leave the run after the step, or after 3 s at most; then `serve` returns."""
        self._leaving.set()
