"""How much memory is free, where the system says so."""

import math

import pytest
import torch

from p2pswarm.server.devices.free_memory import free_bytes, graph_bytes, room_bytes

CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 1 << 30


def test_the_kernel_tells_of_the_host(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  16 kB\nMemAvailable:    8 kB\nBuffers: 1 kB\n")

    assert free_bytes(CPU, meminfo) == 8192


@pytest.mark.parametrize("text", ["", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_what_it_says_otherwise_is_not_known(tmp_path, text):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text)

    assert free_bytes(CPU, meminfo) is None
    assert free_bytes(CPU, tmp_path / "nothing") is None


def test_of_another_device_nothing_is_known():
    assert free_bytes(torch.device("meta")) is None


@pytest.mark.parametrize(
    ("asked_mib", "device", "free", "expected"),
    [
        (0, GPU, 80 * GIB, 35 * GIB),  # 10 are the engine's
        (0, GPU, 8 * GIB, 0),  # the weights themselves do not fit: torch will say so
        (0, GPU, None, GIB),
        (0, CPU, 80 * GIB, GIB),
        (256, GPU, 80 * GIB, GIB // 4),
        (256, CPU, None, GIB // 4),
    ],
)
def test_graphs_get_what_was_asked_or_half_of_a_gpu(asked_mib, device, free, expected):
    assert graph_bytes(asked_mib, device, free, 10 * GIB) == expected


@pytest.mark.parametrize(
    ("free", "expected"), [(80 * GIB, 35 * GIB), (8 * GIB, 0.0), (None, math.inf)]
)
def test_one_graph_made_at_once_gets_half_of_what_is_free(free, expected):
    assert room_bytes(free, 10 * GIB) == expected
