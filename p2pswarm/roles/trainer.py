"""A trainer: starts a run on the user's text, shows its progress, and writes the weights.

Units:   seconds.
Errors:  Unusable for text or files that cannot be used; RunEnded when the run fails.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import torch

from p2pswarm.compute.bundle_spec import check_model
from p2pswarm.config import NodeConfig, RunConfig
from p2pswarm.data.corpus import Corpus
from p2pswarm.data.text_files import load_corpus
from p2pswarm.errors import RunEnded, SwarmError
from p2pswarm.ids import PeerId
from p2pswarm.outfile import Written, check_target
from p2pswarm.progress.events import Event
from p2pswarm.roles.discovery import announce
from p2pswarm.roles.output import output
from p2pswarm.roles.reporter import Reporter
from p2pswarm.roles.run_status import LatestStatus
from p2pswarm.roles.stack import NodeStack
from p2pswarm.roles.stage import tensors_within, unless
from p2pswarm.roles.weights_file import (
    model_size,
    named_weights,
    state_sizes,
    weights_name,
    write_weights,
)
from p2pswarm.settings import run_to_json
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.manifest import NONCE_BYTES, RunIdentity, sign_manifest
from p2pswarm.swarm.messages.status import AskStatus, RunStatus
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.chain_place import founding_place
from p2pswarm.trainer.context import TrainerContext
from p2pswarm.trainer.trainer import Trainer

LEFT_EARLY = 130  # exit code: the run is not over; scripts should know
SAVE_S = 2.0  # Ctrl-C ends the process within 5 s: enough to fetch a small model's weights

Say = Callable[[str], None]


async def run(stack: NodeStack, leaving: asyncio.Event, say: Say) -> int:
    """Train from the first step to the last, or until asked to leave."""
    config = stack.config
    check_model(config.run)
    if config.train.weights is not None:
        last = weights_name(config.train.weights, config.run, config.run.steps)
        check_target(last, model_size(config.run).file_bytes)
    corpus = await asyncio.to_thread(read_corpus, config)
    say(
        f"{corpus.files} files: {len(corpus.train):,} bytes to train on, "
        f"{len(corpus.held_out):,} held out"
    )
    with output(config.train.progress, config.run.steps, f"run {config.run.name}") as tell:
        async with open_trainer(stack, corpus, tell) as trainer:
            ended = await unless(leaving, trainer.run())
            if ended is not None and ended.failed:
                leaving.set()  # nothing is left to do; this starts the time limit of leaving
            saved = await _save(trainer, config, ended)
    if saved:
        say(saved)
    if ended is None:
        return LEFT_EARLY
    if ended.failed:
        raise RunEnded(ended.reason)
    return 0


@contextlib.asynccontextmanager
async def open_trainer(
    stack: NodeStack, corpus: Corpus, tell: Callable[[Event], None]
) -> AsyncIterator[Trainer]:
    """Offer the run of the settings to the swarm and train it while this block lasts.

    `tell` is called with every event as it happens.
    """
    run_config = stack.config.run
    text = await asyncio.to_thread(corpus.digest)
    identity = RunIdentity(run_config, text, os.urandom(NONCE_BYTES), stack.identity.peer_id.raw)
    manifest = sign_manifest(stack.identity, identity, stack.endpoint.contact.address)
    reporter = Reporter(run_config, model_size(run_config).parameters)
    status = LatestStatus(identity.run, run_config.stages)
    loop = asyncio.get_running_loop()

    def show(event: Event) -> None:
        status.told(event, loop.time())
        tell(event)

    def report(report: act.Report) -> None:
        for event in reporter.report(report, loop.time()):
            show(event)

    def asked(peer: PeerId, question: AskStatus) -> RunStatus:
        del peer
        return status.answer(question, loop.time())

    stack.rpc.serve_unary(AskStatus, asked)

    context = TrainerContext(
        rpc=stack.rpc,
        tensors=tensors_within(stack.config.network, torch.device("cpu")),
        run=run_config,
        run_id=identity.run,
        corpus=corpus,
        report=report,
        rng=Random(os.urandom(32)),
        chain=founding_place(stack.identity, identity.run, run_config),
    )
    async with asyncio.TaskGroup() as tasks:
        announcing = tasks.create_task(announce(stack, manifest))
        async with Trainer(context) as trainer:
            for event in reporter.offered():
                show(event)
            yield trainer
        announcing.cancel()


def read_corpus(config: NodeConfig) -> Corpus:
    """The text of the settings, as the run's batches need it."""
    train, model, batch = config.train, config.run.model, config.run.batch
    assert train.data is not None, "the command line requires it"
    return load_corpus(
        train.data,
        suffixes=train.suffixes,
        held_out_share=train.held_out_share,
        seed=config.run.seed,
        shape=(batch.rows, model.sequence_length),
    )


async def _save(trainer: Trainer, config: NodeConfig, ended: act.RunFinished | None) -> str:
    """Fetch and write the weights; returns what to print about it."""
    path = config.train.weights
    if path is None or (ended is not None and ended.failed):
        return ""
    try:
        async with asyncio.timeout(SAVE_S if ended is None else None):
            written = await save(trainer, config.run, path, named=True)
    except TimeoutError:
        return "left before the weights could be fetched"
    except SwarmError as error:
        if ended is None:
            return f"left without the weights: {error}"
        raise
    return f"weights: {written}"


async def save(
    trainer: Trainer, run_config: RunConfig, path: Path, *, named: bool = False
) -> Written:
    """Fetch the weights from their servers and write them; returns where they are.

    `named`: the run's name and the step are added to the name of the file.
    """
    snapshots = await trainer.weights(state_sizes(run_config))
    if named:
        step = min(snapshot.version for snapshot in snapshots)
        path = weights_name(path, run_config, step)
    return await asyncio.to_thread(_write, path, run_config, snapshots)


def _write(path: Path, run_config: RunConfig, snapshots: list[Snapshot]) -> Written:
    about = run_to_json(run_config).decode()
    return write_weights(path, named_weights(run_config, snapshots), about)
