"""Tensors that live on a GPU: copied through pinned host memory, once each way.

What is computed to make a tensor smaller is computed where the tensor is, so that
only the smaller bytes cross the bus.
"""

import torch

from p2pswarm.tensors.codecs.base import Device, Tensor


def on_host(tensor: Tensor) -> Tensor:
    """The tensor, contiguous, on the CPU: itself if it is so already."""
    tensor = tensor.detach().contiguous()
    if tensor.device.type == "cpu":
        return tensor
    host = host_memory(tensor.shape, tensor.dtype, tensor.device)
    return host.copy_(tensor)  # blocks until the bytes are here


def host_memory(shape: tuple[int, ...], dtype: torch.dtype, device: Device) -> Tensor:
    """Uninitialised CPU memory, pinned where `device` copies faster from such."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
