"""Settings, models and texts that are wrong: one line, and no node was begun."""

import os

import pytest

RUN = """
[train]
data = "{data}"
weights = ""

[run]
model = "{model}"
{run}
"""
TEXT = "text"


@pytest.fixture
def refused(start, tmp_path, text_folder):
    """Starts a program that has to say one line on stderr and nothing else; returns the line."""
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "silent.py").write_text(SILENT)

    def start_and_end(*flags, **settings) -> str:
        if settings:
            texts = {"data": TEXT, "model": "gpt", "run": ""} | settings
            (tmp_path / "run.toml").write_text(RUN.format(**texts))
        node = start(*flags, module="p2pswarm")
        assert node.end() == 2, node.errors
        assert node.errors.startswith("error: ")
        assert node.errors.count("\n") == 1, node.errors
        assert node.said == "", "a node has begun"
        return node.errors

    return start_and_end


SILENT = """
import torch
from torch import nn

class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.rand(())

class Failing(nn.Linear):
    def forward(self, x):
        raise Mine("no wish")

class Mine(Exception):
    pass

def noisy(config):
    return [nn.Embedding(config.vocabulary, 8), Noisy(8, 8), nn.Linear(8, config.vocabulary)]

def failing(config):
    return [nn.Embedding(config.vocabulary, 8), Failing(8, config.vocabulary)]
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"model": "silent:noisy"}, "chance of its own"),
        ({"model": "silent:failing"}, "Mine: no wish (silent.py, line 11)"),
        ({"data": "torn.parquet"}, "torn.parquet"),
        ({"model": "gtp"}, "no model family 'gtp' here"),
        ({"run": 'start = "pretrained"'}, "needs weights in a folder"),
    ],
)
def test_a_trainer_says_what_is_wrong_before_its_node_begins(refused, settings, says):
    assert says in refused("train", "run.toml", "--listen", "127.0.0.1:0", **settings)


@pytest.mark.parametrize(
    ("serve", "says"),
    [
        ('device = "cuda:99"', "serve.device 'cuda:99'"),
        ('device = "cpu,cpu"\ncompiled = true', "serve.compiled is for one device"),
        ('pretrained = "gone"', "gone"),
    ],
)
def test_a_server_says_what_is_wrong_before_its_node_begins(refused, tmp_path, serve, says):
    (tmp_path / "stage.toml").write_text(f"[serve]\n{serve}\n")

    assert says in refused("node", "--role", "stage", "--config", "stage.toml")


def test_a_demo_says_what_is_wrong_with_its_text_before_it_starts_a_node(start, tmp_path):
    (tmp_path / "short.txt").write_text("short")

    demo = start("demo", "--data", "short.txt", module="p2pswarm")

    assert demo.end() == 2
    assert "short.txt: " in demo.errors
    assert demo.errors.count("\n") == 1
    assert "starting a node" not in demo.said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_text_that_is_a_pipe_ends_a_trainer_with_the_remedy(start, tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    (tmp_path / "run.toml").write_text(RUN.format(data="rows.jsonl", model="gpt", run=""))

    trainer = start("train", "run.toml", "--listen", "127.0.0.1:0", module="p2pswarm")

    assert trainer.end() == 2
    assert "is a pipe or a device: write what it gives to a file" in trainer.errors
    assert trainer.errors.count("\n") == 1
