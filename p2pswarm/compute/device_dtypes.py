"""The dtypes that a device lacks, and where they are computed instead.

Metal, the device mps of a Mac, has no float64. Sums of squares, sketches and Muon's products need
it for a moment: they are taken on the host then. Weights in float64 cannot be there at all.

Errors:  Unusable for a run whose weights a device cannot hold.
"""

import torch

from p2pswarm.errors import Unusable
from p2pswarm.models.base import DTYPES

LACKED = {"mps": frozenset({torch.float64, torch.complex128})}
CPU = torch.device("cpu")


def lacks(kind: str, dtype: torch.dtype) -> bool:
    """Whether a kind of device, such as `cuda` or `mps`, has no such dtype."""
    return dtype in LACKED.get(kind, ())


def require_dtype(kind: str, name: str) -> None:
    """Raise Unusable, with the remedy, if a kind of device lacks the dtype of a run's weights."""
    if lacks(kind, DTYPES[name]):
        raise Unusable(
            f"serve.device {kind!r}: {name} is a dtype the device lacks, and the run's weights are "
            'of it: set serve.device to "cpu"'
        )


def place_for(device: torch.device, dtype: torch.dtype) -> torch.device:
    """The device itself if it has the dtype, else the CPU."""
    return CPU if lacks(device.type, dtype) else device
