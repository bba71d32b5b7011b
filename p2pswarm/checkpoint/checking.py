"""Checks a stage's file in one pass: its bytes, its tensors, and the digest of the state in it.

Units:   bytes.
Errors:  BadCheckpoint, one line.
"""

import hashlib

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.checkpoint.digests import StateHasher
from p2pswarm.checkpoint.manifest import SavedStage
from p2pswarm.checkpoint.pieces import PieceReader
from p2pswarm.checkpoint.stage_file import TensorInFile, kinds, layout_in
from p2pswarm.tensors.flat_layout import FlatLayout


def check_stage(reader: PieceReader, stage: SavedStage) -> None:
    """Raise BadCheckpoint unless the file is what the manifest says, and holds that state."""
    header = reader.header()
    tensors = reader.tensors()
    layout = layout_in(tensors)
    for tensor in layout.tensors:
        block = block_of(tensor.name)
        if block is not None and not stage.first_block <= block < stage.end_block:
            raise BadCheckpoint(f"stage {stage.stage} has a tensor {tensor.name[:60]!r}")
    whole = hashlib.sha256(header)
    state = StateHasher(layout)
    _hash_tensors(reader, tensors, layout, (whole, state))
    if whole.digest() != stage.digest.sha256:
        raise BadCheckpoint("the hash of a file and those of its pieces contradict each other")
    if state.digest() != stage.state_digest:
        raise BadCheckpoint(
            f"the state of stage {stage.stage} is not the one that its servers agreed on"
        )


def block_of(name: str) -> int | None:
    """The number of the block that a parameter belongs to: blocks.NUMBER.PARAMETER.

    None for a model that has names of its own, such as model.layers.3.mlp.up_proj.weight.
    """
    number = name.split(".")[1] if name.startswith("blocks.") else ""
    return int(number) if number.isascii() and number.isdigit() else None


def _hash_tensors(
    reader: PieceReader,
    tensors: dict[str, TensorInFile],
    layout: FlatLayout,
    hashers: tuple["hashlib._Hash", StateHasher],
) -> None:
    """Feed the tensors in order: to the file's hash as they are, to the state's with the gaps."""
    whole, state = hashers
    for kind, item_bytes in zip(kinds(layout), layout.item_bytes, strict=True):
        at = 0
        for tensor in layout.tensors:
            state.update(bytes((tensor.start - at) * item_bytes))
            place = tensors[kind + tensor.name]
            for part in reader.read(place.offset, place.nbytes):
                whole.update(part)
                state.update(part)
            at = tensor.stop
        state.update(bytes((layout.length - at) * item_bytes))
