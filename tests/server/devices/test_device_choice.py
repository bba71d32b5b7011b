"""Tests of `server/devices/device_choice.py`."""

import math

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.server.devices.device_choice import (
    devices_of,
    free_bytes,
    graph_bytes,
    one_device,
    require_dtypes,
    require_room,
    room_bytes,
)
from p2pswarm.settings.config import ModelConfig, RunConfig


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("auto", ("auto",)),
        ("cpu", ("cpu",)),
        ("cuda:1", ("cuda:1",)),
        ("cuda:all", ("cuda:0", "cuda:1", "cuda:2")),
        ("cuda:0, cuda:2", ("cuda:0", "cuda:2")),
        ("cpu,cpu", ("cpu", "cpu")),
    ],
)
def test_one_several_or_all(setting, names):
    assert devices_of(setting, gpus=3) == names


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("cuda:0,cuda:3", "torch sees 3 GPUs here, not 'cuda:3'"),
        ("cuda:1,cuda:1", "cuda:1 stands there twice"),
        ("cuda:0,cpu", "are of one kind"),
        ("cuda,cuda:1", "'cuda' cannot share a stage: write cuda:all"),
        ("auto,auto", "'auto' cannot share a stage"),
        ("cuda:0,", "'' cannot share a stage"),
        ("cuda:0,mps", "'mps' cannot share a stage"),
    ],
)
def test_what_cannot_share_a_stage_is_refused_with_the_reason(setting, why):
    with pytest.raises(Unusable, match=why):
        devices_of(setting, gpus=3)


def test_all_of_none_is_refused():
    with pytest.raises(Unusable, match="torch sees no GPU here"):
        devices_of("cuda:all", gpus=0)


@pytest.mark.parametrize(
    ("setting", "match"),
    [
        ("banana", r"^serve\.device 'banana': .{20,160}: set it to \"auto\", \"cpu\" or"),
        ("cuda:77", r"^serve\.device 'cuda:77': .{10,160}: set it to \"auto\", \"cpu\" or"),
        ("privateuseone", r"^serve\.device 'privateuseone': .{10,160}: set it to \"auto\""),
        ("meta", "has no memory and computes no numbers: set it to"),
    ],
)
def test_a_device_that_torch_has_not_is_told_in_a_short_line(setting, match):
    with pytest.raises(Unusable, match=match) as caught:
        one_device(setting)

    assert "\n" not in str(caught.value)
    assert one_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("settings", "lacks", "match"),
    [
        (
            {"model": ModelConfig(dtype="float64")},
            torch.float64,
            "float64 is a dtype the device lacks .run",
        ),
        ({"precision": "bf16"}, torch.bfloat16, r"lacks \(run.precision is bf16"),
    ],
)
def test_a_device_without_a_dtype_of_the_run_is_refused(settings, lacks, match):
    def make(_size, dtype, device):
        if dtype == lacks:
            raise TypeError(f"Cannot convert a {device} Tensor to {dtype}\nadvice")

    run, device = RunConfig(**settings), torch.device("mps")

    with pytest.raises(Unusable, match=match) as caught:
        require_dtypes(run, device, make)

    assert "serve.device mps" in str(caught.value)
    assert "\n" not in str(caught.value)
    require_dtypes(run, torch.device("cpu"))


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


def test_a_stage_that_does_not_fit_the_host_is_refused_before_memory_is_taken():
    with pytest.raises(Unusable, match=r"stage 3 takes 36\.0 GB of memory, and 18\.0 GB are free"):
        require_room(3, CPU, 18 * 10**9, 36e9)

    require_room(3, CPU, 36 * 10**9, 36e9)
    require_room(3, CPU, None, 36e9)  # another system does not say
    require_room(3, GPU, 0, 36e9)  # it refuses by itself


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
