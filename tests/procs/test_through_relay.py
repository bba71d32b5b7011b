"""A run whose machines cannot dial each other: every byte of it passes through a relay."""

import pytest
import torch

from tests.procs.harness import plain_loop, tensors

HERE = ("--listen", "127.0.0.1:0")
RUN = """
[train]
data = "text"
weights = "out/weights.safetensors"

[run]
name = "relayed"
stages = 2
steps = 3

[run.model]
d_model = 16
layers = 2
heads = 2
sequence_length = 32

[run.batch]
microbatches = 4
rows = 2

[run.codecs]
activation = "raw"
gradient = "raw"
"""


@pytest.mark.timeout(300)
def test_a_trainer_and_two_servers_train_through_a_relay(start, seed_node, tmp_path, text_folder):
    """Their only addresses lead through the seed node, which never sees more than ciphertext."""
    _, address = seed_node
    run_file = tmp_path / "run.toml"
    run_file.write_text(RUN)
    join = ("--bootstrap", address, "--relay", address, *HERE)
    servers = [start(*join) for _ in range(2)]
    for server in servers:
        assert f" at {address}/" in server.line_with("peer ")

    trainer = start("--role", "trainer", "--config", run_file, *join)

    assert f" at {address}/" in trainer.line_with("peer ")
    assert trainer.line_with("done after 3 steps")
    assert trainer.end() == 0
    learnt = tensors(tmp_path / "out" / "weights-relayed-step-3.safetensors")
    for name, expected in plain_loop(run_file).items():
        torch.testing.assert_close(learnt[name], expected, rtol=1e-5, atol=1e-6)
    for server in servers:
        assert server.line_with("run 'relayed' is over")
        assert server.end() == 0
        assert "Traceback" not in server.errors
