"""What the weights of a swarm are compared with."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from p2pswarm.models.compute.flat_parameters import named_parameters
from p2pswarm.models.compute.reference import ReferenceTrainer
from p2pswarm.models.model_source import resolved
from p2pswarm.node.run.run_text import read_corpus
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.parser import load

KINDS = {"BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


def tensors(path: Path) -> dict[str, torch.Tensor]:
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, about in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            start, end = (begin + offset for offset in about["data_offsets"])
            values = torch.frombuffer(memoryview(data)[start:end], dtype=KINDS[about["dtype"]])
            found[name] = values.view(about["shape"])
    return found


def plain_loop(run_file: Path) -> dict[str, torch.Tensor]:
    """The weights that one loop in one process makes."""
    config = load(run_file)
    config = replace(config, run=resolved(config.run))
    corpus, run = read_corpus(config), config.run
    plain = ReferenceTrainer(run)
    size = run.batch.microbatches
    for step in range(run.steps):
        for number in range(step * size, (step + 1) * size):
            plain.add(torch.from_numpy(corpus.microbatch(number)), number)
        plain.commit(learning_rate(run, step))
    return {
        name: parameter.detach()
        for name, parameter in named_parameters(plain.flat.numbers, plain.flat.blocks)
    }
