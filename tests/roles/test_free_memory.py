"""How much memory is free, where the system says so."""

import pytest
import torch

from p2pswarm.roles.free_memory import free_bytes

CPU = torch.device("cpu")


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
