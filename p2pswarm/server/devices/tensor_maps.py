"""Tensors in memory that a node and the processes of its devices all map.

The memory is an anonymous file, which a child inherits: no name, no limit of /dev/shm, and it is
gone with the last process.

Shapes:  any.
Source:  memfd_create(2).
"""

import mmap
import os

import torch
from torch import Tensor

from p2pswarm.base.errors import Unusable
from p2pswarm.server.devices.rank_commands import SharedPlace


def shared_zeros(
    places: list[SharedPlace], name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> Tensor:
    """A tensor of zeros that others can map, too; appends its file to `places`."""
    if not hasattr(os, "memfd_create"):
        raise Unusable("several devices of one node need Linux: start one node for each device")
    place = SharedPlace(name, os.memfd_create(name), str(dtype).removeprefix("torch."), shape)
    os.ftruncate(place.descriptor, max(1, _bytes_of(place)))
    places.append(place)
    return mapped(place)


def mapped(place: SharedPlace) -> Tensor:
    """The tensor that lies there; it is the same memory in every process."""
    dtype, size_bytes = _dtype_of(place), _bytes_of(place)
    if not size_bytes:
        return torch.zeros(place.shape, dtype=dtype)
    memory = mmap.mmap(place.descriptor, size_bytes)  # the tensor holds it
    return torch.frombuffer(memory, dtype=dtype).view(place.shape)


def close_all(places: list[SharedPlace]) -> None:
    """Close files that are mapped by now; what is mapped stays."""
    for place in places:
        os.close(place.descriptor)
    places.clear()


def _dtype_of(place: SharedPlace) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, place.dtype)
    return dtype


def _bytes_of(place: SharedPlace) -> int:
    return torch.Size(place.shape).numel() * _dtype_of(place).itemsize
