"""The dtypes that a device of torch lacks, and its errors as the package's own.

Metal, the device mps of a Mac, has no float64. Sums of squares and sketches need it for a moment,
and some of Muon's sums: they are taken on the host then. Weights in float64 cannot be there at all
(`server/devices/device_choice.py`).

Errors:  Refused when a microbatch cannot be computed here: another server may; Unusable when a
         stage cannot be set up, or its device is lost.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.checkpoint import CheckpointError

from p2pswarm.base.errors import Refused, Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.models.library.foreign_code import is_foreign, said

LACKED = {"mps": frozenset({torch.float64, torch.complex128})}
CPU = torch.device("cpu")
REASON_CHARS_MAX = 160  # torch's messages have pages of advice after the first line
ALLOCATOR = "DefaultCPUAllocator"
"""The name that a CPU without memory puts in its error; for a GPU torch has an error class."""


def place_for(device: torch.device, dtype: torch.dtype) -> torch.device:
    """The device itself if it has the dtype, else the CPU."""
    return CPU if dtype in LACKED.get(device.type, ()) else device


@contextmanager
def computing() -> Iterator[None]:
    """Raise Refused, with the remedy, for what torch cannot compute; DeviceLost for a lost device.

    After an error of the device itself every later call fails too, so the server has to end. An
    index out of range may follow from whole numbers that a peer sent, and torch raises it without
    a frame of its own: it is refused as well, and ends nothing.
    """
    try:
        yield
    except (RuntimeError, MemoryError, IndexError) as error:
        if out_of_memory(error):
            raise Refused(
                "out of memory: lower serve.graph_mib here, or run.batch.rows, or raise run.stages "
                f"({first_line(error)})"
            ) from error
        if isinstance(error, CheckpointError):
            raise Refused(
                "a block does something else when it is computed again: mend the model, which "
                "p2pswarm check-model names"
            ) from error
        if isinstance(error, torch.AcceleratorError):
            raise DeviceLost(
                f"the device failed, start this node again: {first_line(error)}"
            ) from error
        raise Refused(f"torch could not compute it: {first_line(error)}") from error
    except Exception as error:
        if not is_foreign(error):
            raise
        raise Refused(f"the model's own code fails, mend it: {said(error)}") from error


@contextmanager
def setting_up(stage: int) -> Iterator[None]:
    """Raise Unusable, with the remedy, when there is no memory for a stage's weights."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise Unusable(
            f"no memory for the weights of stage {stage}: set serve.device to another one, or "
            f"raise run.stages ({first_line(error)})"
        ) from error


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or (isinstance(error, RuntimeError) and ALLOCATOR in str(error))


def first_line(error: BaseException) -> str:
    """The text of an error, without the advice that follows."""
    line = str(error).strip().partition("\n")[0] or type(error).__name__
    return line[:REASON_CHARS_MAX]
