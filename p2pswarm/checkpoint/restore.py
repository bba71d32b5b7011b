"""A stage's state from a checkpoint, whatever cut the checkpoint was made with.

Each tensor is found by its name. The state comes in order, piece by piece, gaps included, as a
replica keeps it in memory. A run that begins anew may take less: the weights, without their
moments. What it does not take is as in version 0: an average is the weights, moments are zeros.

Errors:  BadCheckpoint when a byte that is needed is not there; OtherCheckpoint when the
  checkpoint has no such tensor, or one of another shape.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from p2pswarm.base.errors import BadCheckpoint, OtherCheckpoint
from p2pswarm.checkpoint.catalogue import Checkpoint
from p2pswarm.checkpoint.checkpoint_manifest import CheckpointManifest, SavedStage
from p2pswarm.checkpoint.digests import zeros
from p2pswarm.checkpoint.stage_file import PieceReader, TensorInFile, base_in, block_of
from p2pswarm.run.messages.run import RunOrigin
from p2pswarm.settings.config import AVERAGE, FACTOR, FORMER, STATE_KINDS, RunConfig
from p2pswarm.tensors.flat_layout import ITEM_BYTES, FlatLayout, FlatTensor

FACTORS = "exp_avg."  # where a state has its warm factors
GATHER_BYTES = 256 << 10  # a hundred small parameters, and the gaps beside them


def state_pieces(
    checkpoint: Checkpoint,
    layout: FlatLayout,
    gather_bytes: int = GATHER_BYTES,
    taken: Collection[str] = STATE_KINDS,
) -> Iterator[memoryview]:
    """The state of the stage that `layout` describes, in pieces of any size.

    Parts smaller than `gather_bytes` come together with others, larger ones without a copy.
    `taken`: the tensors of a state that come from the checkpoint, as `taken_kinds` gives them; the
    others are those of version 0.
    """
    gathered = bytearray()
    for part in _state_parts(checkpoint, layout, taken):
        whole = len(part) >= gather_bytes
        if not whole:
            gathered += part
        if gathered and (whole or len(gathered) >= gather_bytes):
            yield memoryview(bytes(gathered))
            gathered.clear()
        if whole:
            yield memoryview(part)
    if gathered:
        yield memoryview(bytes(gathered))


def _state_parts(
    checkpoint: Checkpoint, layout: FlatLayout, taken: Collection[str]
) -> Iterator[memoryview | bytes]:
    """The bytes of the state, in parts of any size."""
    files = _StageFiles(checkpoint)
    for kind, dtype in zip(layout.kinds, layout.dtypes, strict=True):
        at, item_bytes = 0, ITEM_BYTES[dtype]
        for tensor in layout.tensors:
            yield from zeros((tensor.start - at) * item_bytes)
            source = kind if kind in taken else _first_kind(kind, tensor)
            if source is None:
                yield from zeros((tensor.stop - tensor.start) * item_bytes)
            else:
                known = layout.dtypes[layout.kinds.index(source)]
                reader, place = files.find(source, tensor, known)
                parts = reader.read(place.offset, place.nbytes)
                yield from parts if known == dtype else _widened(parts, known, dtype)
            at = tensor.stop
        yield from zeros((layout.length - at) * item_bytes)


def _first_kind(kind: str, tensor: FlatTensor) -> str | None:
    """Of which tensor version 0 has the bytes where a state keeps `kind`; None: zeros."""
    if tensor.name.startswith(FACTOR):
        return FACTORS if kind == FACTORS else None  # a direction is no moment: it stays warm
    return "" if kind in ("", AVERAGE, FORMER) else None


def _widened(parts: Iterable[memoryview], dtype: str, wide: str) -> Iterator[bytes]:
    """Weights in bfloat16 as float32, which has the same bits and more: little-endian."""
    assert (dtype, wide) == ("bfloat16", "float32"), "other weights are kept as they compute"
    left = b""
    for part in parts:
        narrow = left + part
        whole = len(narrow) // 2 * 2
        left = narrow[whole:]  # a piece of a file may end within a number
        widened = bytearray(2 * whole)
        widened[2::4], widened[3::4] = narrow[:whole:2], narrow[1:whole:2]
        yield bytes(widened)


def updates_before(checkpoint: Checkpoint, origin: RunOrigin) -> int:
    """The optimizer's steps before version 0 of a run with this origin, whose moments it keeps."""
    return checkpoint.manifest.cursor.optimizer_step - origin.begins


def taken_kinds(there: RunConfig, origin: RunOrigin) -> Collection[str]:
    """The tensors of a state that a run takes from its checkpoint, which is of the run `there`."""
    if origin.fresh:
        return ("",)
    return tuple(there.state) if origin.anew else STATE_KINDS


def base_roots(checkpoint: Checkpoint, blocks: range) -> tuple[bytes, ...]:
    """The roots of the frozen weights under these blocks, whatever the checkpoint's cut; none if
    its run froze none.
    """
    roots: dict[int, bytes] = {}
    for stage in checkpoint.manifest.stages:
        own = range(stage.first_block, stage.end_block)
        if set(own).intersection(blocks):
            roots |= roots_by_block(own, base_in(checkpoint.reader(stage).header()))
    found = tuple(roots[block] for block in blocks if block in roots)
    if found and len(found) != len(blocks):
        raise BadCheckpoint(
            f"{checkpoint.place} has roots of frozen weights of {len(found)} of {len(blocks)} "
            "blocks: its files are of several runs: name another checkpoint"
        )
    return found


def roots_by_block(blocks: range, found: Sequence[bytes]) -> dict[int, bytes]:
    """The root under each block of a stage's file, which has one for each of them, or none."""
    if found and len(found) != len(blocks):
        raise BadCheckpoint(
            f"a stage's file with {len(found)} roots of frozen weights for {len(blocks)} blocks: "
            "copy the checkpoint again, or name another"
        )
    return dict(zip(blocks, found, strict=True)) if found else {}


def stage_as_saved(
    manifest: CheckpointManifest, run: RunConfig, blocks: range
) -> SavedStage | None:
    """The stage of a checkpoint that has just these blocks, and the tensors that a state of `run`
    has; None if its cut is another, or what it keeps beside the weights.
    """
    if manifest.run_config().state != run.state:
        return None
    cut = blocks.start, blocks.stop
    return next((s for s in manifest.stages if (s.first_block, s.end_block) == cut), None)


class _StageFiles:
    """The files of a checkpoint, opened when a tensor in them is asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._open: dict[int, tuple[PieceReader, dict[str, TensorInFile]]] = {}
        self._last: PieceReader | None = None

    def find(self, kind: str, tensor: FlatTensor, dtype: str) -> tuple[PieceReader, TensorInFile]:
        """Where a tensor is; a stage of the new cut may have its tensors in several files."""
        reader, tensors = self._stage_with(kind + tensor.name)
        if self._last is not None and self._last is not reader:
            self._last.release()  # one piece is in memory, not one of each file
        self._last = reader
        place = tensors[kind + tensor.name]
        if (place.dtype, place.shape) != (dtype, tensor.shape):
            raise self._other(
                f"has {kind + tensor.name} as {place.dtype} {list(place.shape)}, the run as "
                f"{dtype} {list(tensor.shape)}"
            )
        return reader, place

    def _stage_with(self, name: str) -> tuple[PieceReader, dict[str, TensorInFile]]:
        for stage in self._likely(name):
            if stage.stage not in self._open:
                reader = self._checkpoint.reader(stage)
                self._open[stage.stage] = reader, reader.tensors()
            if name in self._open[stage.stage][1]:
                return self._open[stage.stage]
        raise self._other(f"has no tensor {name}")

    def _likely(self, name: str) -> list[SavedStage]:
        """The stages in which a tensor may be, the likeliest first: a header is read for each."""
        stages = self._checkpoint.manifest.stages
        kind = next((kind for kind in STATE_KINDS if kind and name.startswith(kind)), "")
        block = block_of(name.removeprefix(kind))
        if block is not None:
            return [one for one in stages if one.first_block <= block < one.end_block]
        return sorted(stages, key=lambda one: one.stage not in self._open)

    def _other(self, what: str) -> OtherCheckpoint:
        return OtherCheckpoint(
            f"{self._checkpoint.place} {what}: it is of another model; name a checkpoint of this "
            "one, or set the model back"
        )
