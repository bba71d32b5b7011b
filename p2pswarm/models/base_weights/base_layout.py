"""The bytes of a block's frozen weights: their places, their first values and their root.

They depend on the run and the block's number alone, not on the cut: so what a server keeps of a
block is good in any stage. The root of a block is the hash of its pieces' hashes.

Shapes:  bytes are uint8, one buffer for each block.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p2pswarm.models.blocks import first_values, make_blocks
from p2pswarm.models.formats.weight_formats import (
    TensorCut,
    WeightFormat,
    aligned,
    format_named,
)
from p2pswarm.settings.config import RunConfig
from p2pswarm.tensors.codecs.base import bytes_of
from p2pswarm.tensors.codecs.tensor_pool import on_host
from p2pswarm.tensors.flat_layout import Span
from p2pswarm.tensors.state_tree import root_of

PIECE_BYTES = 4 << 20  # 0.2 s at 200 Mbit/s
THREADS = 8  # as for the state's hashes
KEY_TAG = b"p2pswarm-base-block-1:"
OF_TEXT = ("folder", "tokenizer", "document_end", "documents", "router_loss")
"""The settings of a model on which no weight depends."""
WHOLE: Mapping[str, TensorCut] = {}


@dataclass(frozen=True, slots=True)
class BaseTensor:
    """The place of a frozen parameter in its block's bytes."""

    name: str
    """In its block."""
    shape: tuple[int, ...]
    format: WeightFormat
    start: int
    stop: int


def base_tensors(
    run: RunConfig, block: nn.Module, cuts: Mapping[str, TensorCut] = WHOLE
) -> list[BaseTensor]:
    """The frozen parameters of a block, or the parts `cuts` of them by their names, in order."""
    found, start = [], 0
    modules = dict(block.named_modules())
    for name, parameter in block.named_parameters():
        if parameter.requires_grad:
            continue
        owner, _, own = name.rpartition(".")
        quantised = getattr(modules[owner], "packs", {}).get(own, False)
        kind = run.base if quantised or run.base == "full" else "bf16"
        form = format_named(kind, run.model.dtype)
        shape = tuple(parameter.shape)
        if name in cuts:
            shape = cuts[name].shape(shape)
        stop = start + form.size_bytes(shape)
        found.append(BaseTensor(name, shape, form, start, stop))
        start = aligned(stop)
    return found


def base_bytes(run: RunConfig, numbers: range) -> int:
    """The memory of what is frozen of the blocks `numbers`."""
    blocks = _shapes(run, numbers) if run.has_base else ()
    return sum(size_of(base_tensors(run, block)) for block in blocks)


def size_of(tensors: Sequence[BaseTensor]) -> int:
    """The bytes of a block."""
    return aligned(tensors[-1].stop) if tensors else 0


def fill_block(
    run: RunConfig, number: int, block: nn.Module, tensors: Sequence[BaseTensor], data: Tensor
) -> None:
    """Write a block's bytes; of `block` only names and shapes count."""
    places = {tensor.name: tensor for tensor in tensors}
    for name, values in first_values(run, number, block, trained=False):
        tensor = places[name]
        tensor.format.pack(values.to(data.device), data[tensor.start : tensor.stop])


def base_roots(run: RunConfig, numbers: range) -> Iterator[bytes]:
    """The root of each of the blocks `numbers`; the memory of one block is enough."""
    for number, block in zip(numbers, _shapes(run, numbers), strict=True):
        tensors = base_tensors(run, block)
        data = torch.zeros(size_of(tensors), dtype=torch.uint8)
        fill_block(run, number, block, tensors, data)
        yield root_of(block_hashes(data))


def _shapes(run: RunConfig, numbers: range) -> list[nn.Module]:
    """Blocks without memory."""
    with torch.device("meta"):
        return make_blocks(run, numbers)


def base_spans(size: int) -> list[Span]:
    """The pieces of a block of `size` bytes."""
    return [(start, min(start + PIECE_BYTES, size)) for start in range(0, size, PIECE_BYTES)]


def block_hashes(data: Tensor) -> tuple[bytes, ...]:
    """The hash of each piece of a block's bytes, on any device."""

    def hashed(span: Span) -> bytes:
        start, stop = span
        return hashlib.sha256(bytes_of(on_host(data[start:stop]))).digest()

    with ThreadPoolExecutor(THREADS) as pool:
        return tuple(pool.map(hashed, base_spans(len(data))))


def block_key(run: RunConfig, number: int) -> str:
    """A name for what a block's bytes are made of: runs that share it may share the bytes.

    It names no content, because a local folder's files have none in the manifest: whoever reads
    bytes by this name proves them by the root that the run's members agree on.
    """
    model = dataclasses.asdict(run.model)
    made_of = {
        "model": {name: value for name, value in model.items() if name not in OF_TEXT},
        "start": run.start,
        "seed": run.seed if run.start == "random" else None,
        "base": run.base,
        "frozen": run.frozen,
        "train": run.adapter.train if run.adapter is not None else None,
        "block": number,
    }
    return hashlib.sha256(KEY_TAG + json.dumps(made_of, sort_keys=True).encode()).hexdigest()
