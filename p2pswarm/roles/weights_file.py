"""The trained weights as one safetensors file, a name for each parameter of each block.

The format is eight bytes of header length, a JSON header, and the tensors' bytes; so it is written
here without a library.

Units:   bytes.
Shapes:  as the model's parameters.
Errors:  Unusable when the file cannot be written.
Source:  https://huggingface.co/docs/safetensors, "Format".
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from p2pswarm.compute.flat_parameters import FlatParameters, host_bytes
from p2pswarm.config import RunConfig
from p2pswarm.errors import BadMessage, Unusable
from p2pswarm.models.partition import stage_blocks
from p2pswarm.state.snapshot import Snapshot

KINDS = {torch.float32: "F32", torch.float64: "F64"}
HEADER_ALIGN = 8  # the format asks that the tensors begin at a multiple of it


def state_sizes(run: RunConfig) -> list[int]:
    """Bytes of each stage's snapshot."""
    meta = torch.device("meta")
    flats = [FlatParameters(run, stage_blocks(run, stage), meta) for stage in range(run.stages)]
    return [sum(x_N.nbytes for x_N in flat.state()) for flat in flats]


def named_weights(run: RunConfig, snapshots: Iterable[Snapshot]) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the model, from one snapshot a stage in their order."""
    for stage, snapshot in enumerate(snapshots):
        flat = FlatParameters(run, stage_blocks(run, stage), torch.device("cpu"))
        weights = torch.frombuffer(snapshot.data, dtype=flat.params_N.dtype)
        flat.params_N.copy_(weights[: flat.length])
        if flat.digest() != snapshot.digest:
            raise BadMessage(f"the weights of stage {stage} are not those that were agreed on")
        for number, block in zip(flat.numbers, flat.blocks, strict=True):
            for name, parameter in block.named_parameters():
                yield f"blocks.{number}.{name}", parameter.detach()


def write_weights(path: Path, tensors: Iterable[tuple[str, Tensor]], about: str) -> int:
    """Write them beside `path`, then put them in its place; returns how many bytes."""
    whole = dict(tensors)
    header: dict[str, object] = {"__metadata__": {"run": about}}
    offset = 0
    for name, tensor in whole.items():
        end = offset + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {
            "dtype": KINDS[tensor.dtype],
            "shape": shape,
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % HEADER_ALIGN)
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in whole.values():
                file.write(host_bytes(tensor.contiguous()))
        beside.replace(path)
    except OSError as error:
        raise Unusable(f"{path}: cannot be written: {error.strerror}") from error
    return 8 + len(text) + offset
