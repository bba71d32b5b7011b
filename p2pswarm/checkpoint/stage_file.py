"""A stage's file: its format, its reading piece by piece, and the check of all that it holds.

A file is safetensors: weights, first moments, second moments. In memory the state is flat buffers
with gaps between the parameters; a file has no gaps. So the bytes of the file are those of the
state without the gaps, after a header that is known beforehand: one pass over the state makes it.

Units:   bytes; offsets of tensors are from the start of the file.
Errors:  BadCheckpoint for a header that this program did not write, or a piece that no copy has;
  ValueError for a state that does not fit its layout.
Source:  https://huggingface.co/docs/safetensors, "Format".
"""

import hashlib
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from p2pswarm.base.errors import BadCheckpoint, one_line
from p2pswarm.checkpoint.checkpoint_manifest import SavedStage
from p2pswarm.checkpoint.digests import DIGEST_BYTES, FileDigest, StateHasher
from p2pswarm.checkpoint.store import CheckpointStore
from p2pswarm.settings.config import FACTOR, STATE_KINDS
from p2pswarm.tensors.flat_layout import ITEM_BYTES, STATE_TENSORS, FlatLayout, Shape, flat_layout

REASON_CHARS_MAX = 60  # of what JSON says, beside the file's name
DTYPE_NAMES = {"bfloat16": "BF16", "float32": "F32", "float64": "F64"}
DTYPES_BY_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()}
BASE_KEY = "base"  # of a file's metadata: the roots of frozen weights, hexadecimal
LENGTH_BYTES = 8  # the header's length, a little-endian u64
HEADER_BYTES_MAX = 16 << 20  # 100,000 tensors; the format allows 100 MB
HEADER_ALIGN = 8
RANK_MAX = 8


@dataclass(frozen=True, slots=True)
class TensorInFile:
    """A tensor's place in a stage's file."""

    dtype: str
    shape: Shape
    offset: int
    nbytes: int


def header_of(layout: FlatLayout, about: Mapping[str, str]) -> bytes:
    """The first bytes of the file: the header and its length."""
    entries: dict[str, object] = {"__metadata__": dict(about)}
    offset = 0
    for kind, dtype in zip(layout.kinds, layout.dtypes, strict=True):
        for tensor in layout.tensors:
            end = offset + (tensor.stop - tensor.start) * ITEM_BYTES[dtype]
            entries[kind + tensor.name] = {
                "dtype": DTYPE_NAMES[dtype],
                "shape": list(tensor.shape),
                "data_offsets": [offset, end],
            }
            offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGN)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def file_bytes(layout: FlatLayout, header_bytes: int) -> int:
    """The size of the file, with a header of `header_bytes`."""
    elements = sum(tensor.stop - tensor.start for tensor in layout.tensors)
    return header_bytes + elements * sum(layout.item_bytes)


class StageFileEncoder:
    """Takes the bytes of a state in order, and gives those of the file."""

    def __init__(self, layout: FlatLayout) -> None:
        self._spans = deque(_tensor_spans(layout))
        self._total = layout.state_bytes
        self._taken = 0

    def encode(self, piece: memoryview) -> list[memoryview]:
        """The parts of the next piece of the state that belong into the file."""
        piece = piece.cast("B")
        begin, end = self._taken, self._taken + piece.nbytes
        if end > self._total:
            raise ValueError(f"a state of {end} bytes or more; its layout has {self._total}")
        parts = []
        at = begin
        while self._spans and self._spans[0][0] < end:
            start, stop = self._spans[0]
            self._require_gap(piece[at - begin : max(at, start) - begin])
            at = max(at, start)
            parts.append(piece[at - begin : min(stop, end) - begin])
            at = min(stop, end)
            if stop > end:
                break
            self._spans.popleft()
        self._require_gap(piece[at - begin :])
        self._taken = end
        return parts

    def finish(self) -> None:
        """Raise ValueError unless the state was whole."""
        if self._taken != self._total:
            raise ValueError(f"a state of {self._taken} bytes; its layout has {self._total}")

    def _require_gap(self, gap: memoryview) -> None:
        """The gaps between parameters are zero: a reader makes them so."""
        if any(gap):
            raise ValueError("the gap between two parameters is not zero")


class StageFileDecoder:
    """Takes the bytes of a file after its header, in order, and gives those of the state."""

    def __init__(self, layout: FlatLayout) -> None:
        self._spans = deque(_tensor_spans(layout))
        self._total = layout.state_bytes
        self._at = 0

    def decode(self, data: memoryview) -> Iterator[memoryview]:
        """The state's bytes that the next ones of the file make known, gaps included."""
        while data.nbytes:
            start, stop = self._spans[0]
            yield self._gap(start)
            part = data[: stop - self._at]
            self._at += part.nbytes
            data = data[part.nbytes :]
            if self._at == stop:
                self._spans.popleft()
            yield part
        if not self._spans:
            yield self._gap(self._total)

    def _gap(self, end: int) -> memoryview:
        gap = max(0, end - self._at)
        self._at += gap
        return memoryview(bytes(gap))


def _tensor_spans(layout: FlatLayout) -> Iterator[tuple[int, int]]:
    """Yield where the parameters lie in the state, in bytes: start and stop of each."""
    base = 0
    for item_bytes in layout.item_bytes:
        for tensor in layout.tensors:
            if tensor.stop > tensor.start:
                yield base + tensor.start * item_bytes, base + tensor.stop * item_bytes
        base += layout.length * item_bytes


def header_length(first: bytes, size: int) -> int:
    """How many bytes a file of `size` has before its tensors, from its first `LENGTH_BYTES`."""
    if len(first) < LENGTH_BYTES:
        raise BadCheckpoint(f"a stage's file of {size} bytes: it is cut off")
    length = LENGTH_BYTES + int.from_bytes(first[:LENGTH_BYTES], "little")
    if length > min(size, HEADER_BYTES_MAX):
        raise BadCheckpoint(f"a stage's file of {size} bytes with a header of {length}")
    return length


def tensors_in(header: bytes, size: int) -> dict[str, TensorInFile]:
    """The tensors of a file of `size` bytes; `header` is all that is before them."""
    try:
        entries = json.loads(header[LENGTH_BYTES:], object_pairs_hook=_no_name_twice)
        entries.pop("__metadata__", None)
        tensors = {name: _tensor(entry, len(header)) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(
            f"a stage's file with a broken header: {one_line(error, REASON_CHARS_MAX)}"
        ) from error
    end = len(header)
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset != end:
            raise BadCheckpoint("a stage's file with a broken header: its tensors leave gaps")
        end += tensor.nbytes
    if end != size:
        raise BadCheckpoint(f"a stage's file of {size} bytes with tensors up to byte {end}")
    return tensors


def base_in(header: bytes) -> tuple[bytes, ...]:
    """The roots of the frozen weights under the state of a file, one for each of its blocks."""
    try:
        text = json.loads(header[LENGTH_BYTES:]).get("__metadata__", {}).get(BASE_KEY, "")
        joined = bytes.fromhex(text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint("a stage's file with a broken header: its base is none") from error
    return tuple(joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES))


def layout_in(tensors: Mapping[str, TensorInFile]) -> FlatLayout:
    """The layout of the state that a file was made of, from its tensors in the file's order."""
    ordered = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes))
    weights = [(name, t.shape) for name, t in ordered if not name.startswith(STATE_KINDS[1:])]
    more = STATE_KINDS[STATE_TENSORS:]
    moments = not tensors or any(name.startswith(STATE_KINDS[1]) for name in tensors)
    kinds = [*STATE_KINDS[: STATE_TENSORS if moments else 1]]  # of first weights there are none
    kinds += [kind for kind in more if any(name.startswith(kind) for name in tensors)]
    firsts = [tensors.get(kind + name) for name, _ in weights[:1] for kind in kinds]
    dtypes = [first.dtype for first in firsts if first is not None]
    if len(dtypes) < len(kinds):  # no parameters, or the whole comparison below finds the lack
        dtypes += ["float32"] * (len(kinds) - len(dtypes))
    layout = flat_layout(dtypes, weights, kinds)
    whole = [
        (kind + t.name, dtype, t.shape)
        for kind, dtype in zip(kinds, dtypes, strict=True)
        for t in layout.tensors
    ]
    if whole != [(name, tensor.dtype, tensor.shape) for name, tensor in ordered]:
        raise BadCheckpoint("a stage's file whose weights and moments do not belong together")
    return layout


def _tensor(entry: Any, base: int) -> TensorInFile:
    dtype, shape = DTYPES_BY_NAME[entry["dtype"]], tuple(entry["shape"])
    if len(shape) > RANK_MAX or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("a shape")
    begin, end = entry["data_offsets"]
    nbytes = math.prod(shape) * ITEM_BYTES[dtype]
    if type(begin) is not int or begin < 0 or end != begin + nbytes:
        raise ValueError("an offset")
    return TensorInFile(dtype, shape, base + begin, nbytes)


def _no_name_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name twice")
    return values


class PieceReader:
    """Reads the bytes that a `FileDigest` describes, and checks each piece first.

    The copies of a file have the same bytes. So a piece that is damaged in one copy, or that cannot
    be read, is taken from another.
    """

    def __init__(self, store: CheckpointStore, paths: Sequence[str], digest: FileDigest) -> None:
        """`paths` are copies of one file; the first is preferred."""
        self._store = store
        self._paths = paths
        self._digest = digest
        self._held: tuple[int, bytes] = (-1, b"")
        """The last piece: the next tensor often begins in it."""

    def read(self, offset: int, nbytes: int) -> Iterator[memoryview]:
        """Bytes of the file, in parts."""
        size = self._digest.piece_bytes
        while nbytes:
            number, begin = divmod(offset, size)
            part = memoryview(self._piece(number))[begin : begin + nbytes]
            yield part
            offset += part.nbytes
            nbytes -= part.nbytes

    def release(self) -> None:
        """Forget the last piece: nothing more is read for now."""
        self._held = (-1, b"")

    def header(self) -> bytes:
        """All bytes before the first tensor."""
        size = self._digest.size
        first = b"".join(self.read(0, min(LENGTH_BYTES, size)))
        return b"".join(self.read(0, header_length(first, size)))

    def tensors(self) -> dict[str, TensorInFile]:
        """The tensors of the file."""
        return tensors_in(self.header(), self._digest.size)

    def _piece(self, number: int) -> bytes:
        held, piece = self._held
        if held == number:
            return piece
        self.release()  # its memory is free before the next piece comes
        refusals = []
        for path in self._paths:
            try:
                offset = number * self._digest.piece_bytes
                piece = self._store.read(path, offset, self._digest.piece_bytes)
            except OSError as error:
                refusals.append(f"{path}: {error.strerror or error}")
                continue
            if self._digest.matches(number, piece):
                self._held = (number, piece)
                return piece
            refusals.append(f"{path} is damaged in piece {number} of {len(self._digest.pieces)}")
        raise BadCheckpoint("; ".join(refusals) or "a stage without a file")


def check_stage(reader: PieceReader, stage: SavedStage) -> None:
    """Raise BadCheckpoint unless the file is what the manifest says, and holds that state."""
    header, size = reader.header(), stage.digest.size
    layout = layout_in(tensors_in(header, size))
    for tensor in layout.tensors:
        block = block_of(tensor.name)
        if block is not None and not stage.first_block <= block < stage.end_block:
            raise BadCheckpoint(f"stage {stage.stage} has a tensor {tensor.name[:60]!r}")
    whole, decoder = hashlib.sha256(header), StageFileDecoder(layout)
    state = StateHasher(layout, base_in(header))
    for part in reader.read(len(header), size - len(header)):
        whole.update(part)
        for piece in decoder.decode(part):
            state.update(piece)
    if whole.digest() != stage.digest.sha256:
        raise BadCheckpoint("the hash of a file and those of its pieces contradict each other")
    if state.digest() != stage.state_digest:
        raise BadCheckpoint(
            f"the state of stage {stage.stage} is not the one that its servers agreed on"
        )


def block_of(name: str) -> int | None:
    """The number of the block that a parameter belongs to: blocks.NUMBER.PARAMETER.

    None for a model that has names of its own, such as model.layers.3.mlp.up_proj.weight. A warm
    factor belongs where its matrix does.
    """
    name = name.removeprefix(FACTOR)
    number = name.split(".")[1] if name.startswith("blocks.") else ""
    return int(number) if number.isascii() and number.isdigit() else None
