"""The trained weights as one safetensors file, with a name for each parameter of each block.

Errors:  Unusable when the file cannot be written; BadMessage for weights of a wrong digest.
Source:  https://huggingface.co/docs/safetensors, "Format".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.files import Written, write_target
from p2pswarm.checkpoint.weights_name import AVERAGE_ENDING
from p2pswarm.models.blocks import block_count, make_blocks, stage_blocks
from p2pswarm.models.compute.flat_parameters import (
    digest_of,
    layout_of,
    named_parameters,
    shared_in,
    state_of,
)
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.host_state import StateSize
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.parser import run_to_json
from p2pswarm.tensors.flat_layout import ITEM_BYTES

HEADER_BYTES = 8 << 10  # the run's settings and the header's frame, at most
AVERAGE = 3  # its place in the state
ENTRY_BYTES = 160  # a tensor's name, shape and offsets in the header, at most


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a run's model, known before the model is made."""

    parameters: int
    file_bytes: int
    """The size of the file of its weights, at most."""


def model_size(run: RunConfig) -> ModelSize:
    """The size of the whole model."""
    with torch.device("meta"):
        blocks = make_blocks(run, range(block_count(run.model)))
    numbers = range(len(blocks))
    all_parameters = [parameter for _, parameter in named_parameters(numbers, blocks)]
    header_bytes = HEADER_BYTES + ENTRY_BYTES * len(all_parameters)
    count = sum(parameter.numel() for parameter in all_parameters)
    return ModelSize(count, count * ITEM_BYTES[run.state_dtypes[0]] + header_bytes)


def state_sizes(run: RunConfig) -> list[StateSize]:
    """The size of each stage's state."""
    layouts = [layout_of(run, stage_blocks(run, stage)) for stage in range(run.stages)]
    return [StateSize.of(layout) for layout in layouts]


def named_weights(
    run: RunConfig, snapshots: Iterable[Snapshot], *, average: bool = False
) -> Iterator[tuple[str, Tensor]]:
    """Every parameter of the model, from one snapshot of each stage, in the order of stages.

    A tied tensor, which is in the first and in the last snapshot, comes once. `average`: of their
    average over time, which the run has.
    """
    tied: dict[str, Tensor] = {}
    for stage, snapshot in enumerate(snapshots):
        numbers = stage_blocks(run, stage)
        layout = layout_of(run, numbers)
        state = state_of(snapshot.data, run)
        if digest_of(state, StateSize.of(layout).spans, snapshot.base) != snapshot.digest:
            raise BadMessage(f"the weights of stage {stage} are not those that were agreed on")
        values, shared = state[AVERAGE if average else 0], shared_in(run, numbers)
        for tensor in layout.parameters:
            parameter = values[tensor.start : tensor.stop].view(tensor.shape)
            if tensor.name in tied:
                if not torch.equal(tied[tensor.name], parameter):
                    where = f"in stage {stage} as in stage 0"
                    raise BadMessage(f"{tensor.name} is not the same {where}")
                continue
            if tensor.name == shared:
                tied[tensor.name] = parameter
            yield tensor.name, parameter


def write_run(path: Path, run: RunConfig, snapshots: Sequence[Snapshot]) -> Written:
    """Write the weights of a run, and their average over time beside them if there is one."""
    about = run_to_json(run).decode()
    written = write_weights(path, named_weights(run, snapshots), about)
    if run.optimizer.average_decay:
        beside = written.path.with_stem(f"{written.path.stem}{AVERAGE_ENDING}")
        write_weights(beside, named_weights(run, snapshots, average=True), about)
    return written


def write_weights(path: Path, tensors: Iterable[tuple[str, Tensor]], about: str) -> Written:
    """Write a new file at `path`, or nearby if that fails or if there is one already.

    `about` is `run` in the metadata.
    """
    whole = {name: tensor.contiguous() for name, tensor in tensors}
    return write_target(path, lambda place: _save(whole, place, about))


def _save(tensors: dict[str, Tensor], place: Path, about: str) -> None:
    place.touch()
    mode = place.stat().st_mode  # as other files of the user; safetensors would make it 0600
    try:
        save_file(tensors, place, metadata={"run": about})
    except SafetensorError as error:
        raise OSError(0, str(error)) from error
    place.chmod(mode)
