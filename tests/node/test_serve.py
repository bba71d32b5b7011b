"""A server's machine: freed memory, room for a stage, and codecs that its device gets right."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from p2pswarm.base.errors import Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.models.model_source import resolved
from p2pswarm.node import stage_engine
from p2pswarm.node.stage_engine import check_codecs, free_for_stage
from p2pswarm.settings.adapter_config import AdapterConfig
from p2pswarm.settings.config import CodecConfig, RunConfig
from p2pswarm.settings.node_config import ServeConfig

PROGRAM = """
from p2pswarm.node.stage_engine import keep_freed_memory

kept = keep_freed_memory()

import resource

def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

bytearray(16 << 20)
before = faults()
for _ in range(8):
    bytearray(16 << 20)
print(kept, faults() - before)
"""


def test_what_is_freed_is_taken_again_without_a_page_fault():
    made = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)

    kept, faults = made.stdout.split()

    assert kept == b"False" or int(faults) < 100


RUN = RunConfig(name="large", stages=2)
GB = 10**9


def test_a_stage_that_does_not_fit_is_refused_before_it_is_made():
    """36 GB of weights and moments on a machine with 18 GB free, in a line with the remedy."""
    with pytest.raises(Unusable) as refused:
        free_for_stage(RUN, 1, 36 * GB, lambda: 18 * GB)

    told = str(refused.value)
    assert told.startswith("stage 1 of run 'large' takes 60.0 GB of memory at least, and 18.0 GB")
    assert "run.stages" in told
    assert "\n" not in told


def test_a_group_of_devices_whose_host_has_no_room_for_its_state_and_base_is_refused(monkeypatch):
    monkeypatch.setattr(stage_engine, "free_bytes", lambda device: {"cpu": 1 << 20}[device.type])
    run = resolved(dataclasses.replace(RUN, base="int8", adapter=AdapterConfig()))
    several = ServeConfig(device="cpu,cpu", parallel="context")

    with pytest.raises(Unusable, match=r"of memory at least, and 0\.0 GB are free"):
        stage_engine.stage_engine(run, 0, several, torch.device("cpu"))


def test_a_stage_that_fits_or_a_system_that_does_not_tell_is_no_reason_to_refuse():
    assert free_for_stage(RUN, 0, 9 * GB, lambda: 18 * GB) == 18 * GB
    assert free_for_stage(RUN, 0, 36 * GB, lambda: None) is None


def test_memory_of_the_stage_before_counts_as_free_once_it_is_collected():
    told = iter((1 * GB, 20 * GB))

    assert free_for_stage(RUN, 0, 9 * GB, lambda: next(told)) == 20 * GB


def test_a_server_ends_with_codec_device_and_remedy():
    codecs = CodecConfig(activation="raw", gradient="raw", gradient_keys=("memory=dither4",))
    run = dataclasses.replace(RunConfig(), codecs=codecs)

    with pytest.raises(DeviceLost, match=r"codec dither4 on meta .*: set serve.device to another"):
        check_codecs(run, torch.device("meta"))
    check_codecs(run, torch.device("cpu"))


def test_the_codecs_that_a_measured_choice_may_take_are_tested_too():
    run = dataclasses.replace(RunConfig(), codecs=CodecConfig(choice="measured"))

    with pytest.raises(DeviceLost, match="codec bf16 on meta"):
        check_codecs(run, torch.device("meta"))
    check_codecs(run, torch.device("cpu"))
