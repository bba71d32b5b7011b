"""Both servers of a stage are killed for good: the trainer goes back to a checkpoint by itself."""

import os
import re
import signal

import pytest
import torch
from procs.test_checkpoints import HERE, RUN, SAVES, plain_loop, tensors

STEPS = 60


LOW = 'precision = "bf16"\nweight_storage = "bf16"\n'


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("dtype", "kept"),
    [("float64", ""), ("float32", LOW)],
)
def test_a_killed_stage_is_loaded_from_the_checkpoint_and_the_weights_are_those_of_the_loop(
    start, seed_node, text_folder, tmp_path, dtype, kept
):
    _, address = seed_node
    join = ("--bootstrap", address, *HERE)
    run = tmp_path / "run.toml"
    values = {"stages": 2, "steps": STEPS, "replicas": 2, "every": 5, "dtype": dtype}
    rewind = f'[run]\n{kept}on_stage_lost = "rewind"\nrewind_after_s = 6\n'
    run.write_text(RUN.format(**values).replace("[run]\n", rewind))
    servers = [start(*join) for _ in range(4)]
    trainer = start("train", run, *join, module="p2pswarm")
    stages = [re.search(r"stage (\d)", s.line_with("serving stage"))[1] for s in servers]
    assert trainer.line_with("checkpoint of step ")

    for server, stage in zip(servers, stages, strict=True):
        if stage == "1":
            os.killpg(server.process.pid, signal.SIGKILL)
    assert trainer.line_with("no server has brought back the weights of stage 1: the newest copy")
    new = [start(*join, *SAVES) for _ in range(2)]

    assert trainer.line_with("the run has gone back to its checkpoint of step ")
    assert trainer.line_with(f"done after {STEPS} steps")
    assert trainer.end() == 0, trainer.errors
    for server in new:
        server.interrupt()
    said = [server.process.stdout.read() for server in new]
    assert any("loaded from" in each for each in said)  # the other one may have come too late
    ours = tensors(tmp_path / f"weights-saved-step-{STEPS}.safetensors")
    theirs = plain_loop(run)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
