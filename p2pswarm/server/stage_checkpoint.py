"""The rules of a server's checkpoints: its answers to `SaveState` and `LoadState`.

Errors:  NotSaved for an order that is not carried out; BadCheckpoint for a checkpoint that is
  not the one that the run began from.
"""

from collections.abc import Awaitable, Callable, Sequence

from p2pswarm.base.errors import NotSaved, OtherCheckpoint
from p2pswarm.checkpoint.catalogue import Checkpoint, open_checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import SavedStage
from p2pswarm.checkpoint.compatibility import Wanted
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.names import CheckpointId, parse_folder
from p2pswarm.checkpoint.restore import updates_before
from p2pswarm.checkpoint.targets import may_use, open_store
from p2pswarm.checkpoint.writer import StageToSave
from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.run.messages.checkpoint import LoadState, SaveState, Saving
from p2pswarm.run.messages.field_limits import REASON_CHARS
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.run.state.version_reader import CHANGE_WAIT_S, HeldVersion
from p2pswarm.server.member_session import ServerContext
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.flat_layout import FlatLayout

PROGRESS_EVERY_S = 1.0  # people watch it
TARGET_SHOWN = 60  # characters of what a peer names, in a line for people


class NotAllowed(NotSaved):
    """An order that this machine's owner does not let it carry out: another one may write."""


def require_allowed(context: ServerContext, order: SaveState) -> None:
    """Raise NotSaved for an order that this machine does not carry out."""
    if order.run != context.run_id:
        raise NotSaved("that run is not served here")
    if not context.saving.allowed:
        raise NotAllowed("it writes no checkpoints (serve.checkpoints = false)")
    if not _may_be_named(order.target, context.saving.targets):
        raise NotAllowed(_not_named(order.target))


def stage_to_save(
    context: ServerContext,
    stage: int,
    order: SaveState,
    agreed: Callable[[], Awaitable[bytes]],
    base: tuple[bytes, ...],
) -> StageToSave:
    """The file to write of our stage; `agreed` gives the digest of the state.

    `base`: the roots of the frozen weights of its blocks.
    """
    run = context.run
    blocks = stage_blocks(run, stage)
    return StageToSave(
        id=CheckpointId(run.name, context.run_id, order.step, order.head),
        stage=stage,
        stages=run.stages,
        blocks=blocks,
        layout=layout_of(run, blocks),
        agreed=agreed,
        base=base,
    )


def _may_be_named(target: str, allowed: Sequence[str]) -> bool:
    """Return whether a trainer may have this server open a target."""
    return bool(target) and target.isprintable() and may_use(target, allowed)


def _not_named(target: str) -> str:
    """Return what is said of a target that a server's owner does not let a trainer name."""
    return (
        "a server opens no target but those that its owner names, and "
        f"{target[:TARGET_SHOWN]!r} is none: serve.checkpoint_targets, or --checkpoint-target"
    )


def require_version(held: HeldVersion, order: SaveState) -> None:
    """Raise NotSaved if the weights are of a later version by now."""
    if held.version != order.step:
        raise NotSaved(f"the weights are of step {held.version} already")


def too_slow(order: SaveState) -> NotSaved:
    """The error of a target that takes longer than a commit waits."""
    return NotSaved(
        f"a step waited {CHANGE_WAIT_S:g} s for {order.target}, which is too slow: raise "
        "serve.checkpoint_mib on the servers to a stage's state, or name a faster target"
    )


def failed(order: SaveState, reason: str, *, allowed: bool = True) -> Saving:
    """The note that nothing is saved; not `allowed`: and will not be, by this server."""
    return Saving(order.run, order.step, 0, 0, reason[:REASON_CHARS], not allowed)


class ProgressNotes:
    """Tells how far a file is, written and hashed, at most once a second."""

    def __init__(self, order: SaveState, size: int) -> None:
        self._order = order
        self._size = size
        self._due_s = float("-inf")

    def done(self, share: float, now_s: float) -> Saving | None:
        """So much of the work is done; the note to send now, if it is time for one."""
        if now_s < self._due_s:
            return None
        self._due_s = now_s + PROGRESS_EVERY_S
        return Saving(self._order.run, self._order.step, int(share * self._size), self._size, "")


def source_of(
    order: LoadState,
    origin: RunOrigin | None,
    run: RunConfig,
    blocks: range,
    targets: Sequence[str],
) -> Checkpoint:
    """Open the very checkpoint that the trainer names; `blocks`: those that are needed of it.

    `targets`: those that a trainer may name here.

    `origin`: what the run began from, which its id covers. One of the run itself is named by the
    chain, and the trainer is taken at its word. Blocks until its manifest is read.
    """
    if order.folder and parse_folder(order.folder) is None:
        raise OtherCheckpoint("the trainer names no checkpoint, but another place")
    if not _may_be_named(order.target, targets):
        raise OtherCheckpoint(_not_named(order.target))
    source = order.source
    if source != origin and source.run != order.run:
        raise OtherCheckpoint("the trainer names a checkpoint that the run did not begin from")
    anew, fresh = source.anew, source.fresh
    wanted = Wanted(run=source.run, config=run, blocks=blocks, anew=anew, fresh=fresh)
    checkpoint = open_checkpoint(open_store(order.target), order.folder, wanted)
    if checkpoint.digest != source.checkpoint:
        raise OtherCheckpoint(
            f"{checkpoint.place} is not the checkpoint that the run goes on from: name the same "
            "target on all machines"
        )
    if source == origin and not fresh and source.before != updates_before(checkpoint, source):
        raise OtherCheckpoint(f"{checkpoint.place} is of another step of its optimizer")
    return checkpoint


class StateInMemory:
    """A state that comes from a checkpoint, in order, with its digest."""

    def __init__(self, layout: FlatLayout, nbytes: int, base: Sequence[bytes]) -> None:
        """`base`: the roots of the frozen weights here."""
        self._data = memoryview(bytearray(nbytes))
        self._hasher = StateHasher(layout, base)
        self._taken = 0

    def add(self, piece: memoryview) -> None:
        """Take the next bytes."""
        self._data[self._taken : self._taken + piece.nbytes] = piece
        self._hasher.update(piece)
        self._taken += piece.nbytes

    def whole(self, as_saved: SavedStage | None) -> tuple[bytes, memoryview]:
        """The digest and the state; `as_saved`: what the checkpoint says of such a state."""
        digest = self._hasher.digest()
        if as_saved is not None and as_saved.state_digest != digest:
            raise OtherCheckpoint("the state in it is not the one that its servers agreed on")
        return digest, self._data
