"""Training in one call, for scripts."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from p2pswarm.api.node import Node
from p2pswarm.api.run import Run
from p2pswarm.api.server import Server
from p2pswarm.api.trainer import PreparedTrainer, RunTrainer, prepared_run
from p2pswarm.base.errors import RunEnded
from p2pswarm.base.files import check_target
from p2pswarm.data.text_settings import TrainedText, text_of
from p2pswarm.net.os.event_loop import run as run_loop
from p2pswarm.node.progress.event_hub import EventHub
from p2pswarm.node.progress.event_log import open_event_log, try_event_log
from p2pswarm.node.progress.output import output, write_line
from p2pswarm.node.roles import role_module
from p2pswarm.progress.events import Ended
from p2pswarm.settings.config import HF, ModelConfig
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import from_values
from p2pswarm.settings.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class Shown:
    """Where the events of a run go."""

    progress: str
    """What stdout shows."""
    log: Path | None


MakeTrainer = Callable[[Node], RunTrainer]
LOOPBACK = "127.0.0.1:0"  # no other machine can reach a swarm of this process alone


def train(
    run: Run,
    data: TrainedText | str | Path,
    *,
    weights: str | Path | None = None,
    bootstrap: Sequence[str] = (),
    device: str = "auto",
    progress: str = "auto",
    log: str | Path | None = None,
) -> Ended:
    """Train a run to its end, and print its progress; for scripts and notebooks.

    Without `bootstrap` the run is trained in this process alone: it starts the servers that the
    run needs (`stages` times `min_replicas` of them), and all traffic stays on the loopback
    address. With `bootstrap` this process is a trainer of that swarm and waits for servers.
    In a notebook, whose event loop runs already, the run has a thread of its own.

    Args:
        run: What to train.
        data: The text to train on: a path, `p2pswarm.data.Bytes`, with a tokenizer
            `p2pswarm.data.Tokenised`, or several texts, `p2pswarm.data.Mixture`.
        weights: The safetensors file to write at the end; None writes none. A file that is there
            is kept, and a number is added to the name of the new one.
        bootstrap: HOST:PORT of nodes that are in the swarm already.
        device: The device of the servers of this process, as in `Server`.
        progress: `live`, `lines`, `json`, or `auto`: live in a terminal, lines elsewhere.
        log: A file that gets a line of JSON for each event, for `p2pswarm watch`; None: none.

    Returns:
        The last event: steps done, tokens per second, microbatches replayed.

    Raises:
        ValueError: A setting is not allowed.
        p2pswarm.base.errors.Unusable: The text cannot be used, or `weights` or `log` not be
            written.
        p2pswarm.base.errors.RunEnded: The run could not go on; the message says why.
    """
    from_values(TrainConfig, {"progress": progress}, "train")
    if weights is not None:
        check_target(Path(weights))
    shown = Shown(progress, Path(log) if log is not None else None)
    try_event_log(shown.log, "log")
    text = text_of(data)
    if not bootstrap:
        serve = from_values(ServeConfig, {"device": device}, "serve")
        role_module("stage").chosen_device(serve)
    make = functools.partial(PreparedTrainer, run=run, data=text, prepared=prepared_run(run, text))
    if bootstrap:
        ended = run_loop(_train_with(Node(bootstrap=bootstrap), run, make, weights, shown))
    else:
        ended = run_loop(_train_alone(run, make, weights, device, shown))
    if ended.failed:
        raise RunEnded(ended.reason)
    return ended


async def _train_alone(
    run: Run, make: MakeTrainer, weights: str | Path | None, device: str, shown: Shown
) -> Ended:
    """Train with the servers in this process."""
    servers = run.config.stages * run.config.min_replicas
    pretrained = _place_of(run.config.model)
    async with Node(listen=LOOPBACK) as node, AsyncExitStack() as nodes:
        bootstrap = [str(node.contact.address)]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(servers):
                own = Node(bootstrap=bootstrap, listen=LOOPBACK)
                server = Server(
                    await nodes.enter_async_context(own),
                    run=run.name,
                    device=device,
                    pretrained=pretrained,
                )
                tasks.create_task(server.serve())
            return await _train_on(node, run, make, weights, shown)


def _place_of(model: ModelConfig) -> str | Path:
    """The files of a model of `transformers`, which the caller has named; empty for others."""
    if model.folder is not None and model.folder.is_dir():
        return model.folder
    return f"{HF}{model.hub}" if model.hub else ""


async def _train_with(
    own: Node, run: Run, make: MakeTrainer, weights: str | Path | None, shown: Shown
) -> Ended:
    """Train with the servers of a swarm."""
    async with own as node:
        return await _train_on(node, run, make, weights, shown)


async def _train_on(
    node: Node, run: Run, make: MakeTrainer, weights: str | Path | None, shown: Shown
) -> Ended:
    ended, written = None, None
    async with (
        output(shown.progress, f"run {run.name}") as show,
        make(node) as trainer,
    ):
        hub = EventHub(trainer.numbers)
        hub.listen(show)
        with open_event_log(shown.log, "log") as logged:
            hub.listen(logged)
            async for event in trainer:
                hub.tell(event)
                if isinstance(event, Ended):
                    ended = event
                    if weights is not None and not event.failed:
                        written = await trainer.save(weights)
    assert ended is not None, "the last event of a run is Ended"
    if written is not None:
        write_line(f"weights: {written}")  # it may be another place than was asked for
    return ended
