"""The dtypes that a device lacks, and where they are computed instead.

Metal, the device mps of a Mac, has no float64. Sums of squares and sketches need it for a moment,
and some of Muon's sums: they are taken on the host then. Weights in float64 cannot be there at all
(`server/devices/chosen_devices.py`).

Errors:  none.
"""

import torch

LACKED = {"mps": frozenset({torch.float64, torch.complex128})}
CPU = torch.device("cpu")


def lacks(kind: str, dtype: torch.dtype) -> bool:
    """Whether a kind of device, such as `cuda` or `mps`, has no such dtype."""
    return dtype in LACKED.get(kind, ())


def place_for(device: torch.device, dtype: torch.dtype) -> torch.device:
    """The device itself if it has the dtype, else the CPU."""
    return CPU if lacks(device.type, dtype) else device
