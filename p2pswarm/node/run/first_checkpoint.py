"""A checkpoint of version 0, of weights from a user's own files.

Members get it as they get any other that a run begins from, so nobody but the trainer needs the
files. It has weights alone: moments begin with zeros. It lies in the trainer's cache, under a name
that says what is in it. The run's id covers its digest; its signature is by a key that anybody can
make from the weights.

Errors:  Unusable for files that are not of the run's model, or a folder that cannot be written.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from p2pswarm.base.errors import NotSaved, Unusable
from p2pswarm.checkpoint.catalogue import Checkpoint, open_checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest, Cursor, SavedStage
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.digests import StateHasher, zeros
from p2pswarm.checkpoint.names import MANIFEST_NAME, CheckpointId
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.checkpoint.targets import open_store
from p2pswarm.checkpoint.writer import StageFileWriter, StageToSave, write_manifest
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of, named_parameters
from p2pswarm.models.formats.weight_formats import DTYPES
from p2pswarm.models.model_source import resolved
from p2pswarm.models.own_weights import OwnWeights, adapter_to_compare, require_alike
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import POWERSGD, RunConfig
from p2pswarm.settings.parser import run_id, run_to_json
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.trainer.coordinator_io.checkpoints import ResumedFrom

KEY_TAG = b"p2pswarm-first-weights-1:"
FOLDER = "starts"  # in the cache


def own_weights(asked: RunConfig, run: RunConfig) -> OwnWeights:
    """The weights that the settings `asked` start from; `run`: as its manifest has it."""
    if (theirs := adapter_to_compare(run, asked)) is not None:
        require_alike(asked.start, resolved(theirs).adapter, run.adapter)
    if POWERSGD in run.codecs.averagings:
        raise Unusable(
            "run.start names files, which have no directions for sums in low rank: set "
            'run.codecs.averaging to "raw"'
        )
    with torch.device("meta"):
        blocks = make_blocks(run, range(block_count(run.model)))
    named = named_parameters(range(len(blocks)), blocks)
    return OwnWeights(asked.start, {name: tuple(parameter.shape) for name, parameter in named})


def first_checkpoint(weights: OwnWeights, run: RunConfig, cache: Path) -> ResumedFrom:
    """The checkpoint of these weights, made unless it is there."""
    digest, target = weights.digest(), str(cache / FOLDER)
    identity = Identity.generate(KEY_TAG + digest)
    store = open_store(target, identity.peer_id.short)
    about = CheckpointId(run.name, run_id(run_to_json(run), digest), 0)
    try:
        checkpoint = _made(store, about, weights, run, digest, identity)
    except NotSaved as error:
        raise Unusable(f"run.start: {error}") from error
    origin = RunOrigin(about.run, 0, checkpoint.digest, anew=True)
    return ResumedFrom(origin, target, about.folder)


def _made(
    store: CheckpointStore,
    about: CheckpointId,
    weights: OwnWeights,
    run: RunConfig,
    digest: bytes,
    identity: Identity,
) -> Checkpoint:
    wanted = Wanted(config=run, anew=True, fresh=True)
    if MANIFEST_NAME not in store.entries(about.folder):
        numbers = range(run.stages)
        stages = [_written(store, about, weights, run, stage, identity) for stage in numbers]
        manifest = CheckpointManifest(
            run=about.run,
            config=run_to_json(run),
            step=0,
            head=b"",
            chain=None,
            cursor=Cursor(
                optimizer_step=0,
                next_microbatch=0,
                next_learning_rate=learning_rate(run, 0),
                seed=run.seed,
                corpus=digest,
            ),
            stages=tuple(stages),
        )
        write_manifest(store, manifest, identity, None)
    return open_checkpoint(store, about.folder, wanted)


def _written(
    store: CheckpointStore,
    about: CheckpointId,
    weights: OwnWeights,
    run: RunConfig,
    stage: int,
    identity: Identity,
) -> SavedStage:
    """Write a stage's weights."""
    blocks = stage_blocks(run, stage)
    whole = layout_of(run, blocks)
    layout = dataclasses.replace(whole, dtypes=whole.dtypes[:1], kinds=whole.kinds[:1])
    hasher = StateHasher(layout)
    what = StageToSave(id=about, stage=stage, stages=run.stages, blocks=blocks, layout=layout)
    file = StageFileWriter(store, what, identity.peer_id.short)
    try:
        file.begin()
        for piece in _pieces(weights, layout):
            file.write(piece)
            hasher.update(piece)
        return file.finish(hasher.digest())
    except BaseException:
        file.abandon()
        raise


def _pieces(weights: OwnWeights, layout: FlatLayout) -> Iterator[memoryview]:
    """The state of weights alone, gaps included."""
    dtype, item_bytes, at = DTYPES[layout.dtypes[0]], layout.item_bytes[0], 0
    for tensor in layout.tensors:
        yield from (memoryview(part) for part in zeros((tensor.start - at) * item_bytes))
        yield memoryview(bytes_of(weights.tensor(tensor.name, dtype).contiguous()))
        at = tensor.stop
    yield from (memoryview(part) for part in zeros((layout.length - at) * item_bytes))
