"""What a rehearsal has to come to, computed in one process: the norms and the final weights.

The gradient of a microbatch is a one at a place that its tokens choose
(models/compute/stage_emulator.py). Ones add up exactly in any order, so a swarm's weights are
these, bit for bit, if and only if each microbatch was counted once in each stage.
"""

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from swarm_processes import Run
from torch import Tensor

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.flat_parameters import FlatParameters, named_parameters, squared_norm
from p2pswarm.models.compute.optimizer import AdamW
from p2pswarm.models.compute.stage_emulator import gradient_place
from p2pswarm.node.run.run_text import read_corpus
from p2pswarm.run.schedule import clip_scale, learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.settings.parser import load


def configured(run: Run) -> NodeConfig:
    """What the trainer reads of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.toml"
        path.write_text('role = "trainer"\n' + run.settings())
        return load(path)


class RehearsalReference:
    """All stages of a rehearsal, in an ordinary loop."""

    def __init__(self, config: NodeConfig) -> None:
        self._run: RunConfig = config.run
        self._corpus = read_corpus(config)
        cpu = torch.device("cpu")
        stages = range(config.run.stages)
        self._flats = [FlatParameters(self._run, stage_blocks(self._run, s), cpu) for s in stages]
        for flat in self._flats:
            flat.draw()

    def norms(self) -> Iterator[float]:
        """Train to the last step; the norm of each step's gradient."""
        run, size = self._run, self._run.batch.microbatches
        optimizers = [[AdamW(run.optimizer, half) for half in f.halves] for f in self._flats]
        for step in range(run.steps):
            for number in range(step * size, (step + 1) * size):
                tokens = torch.from_numpy(self._corpus.microbatch(number))
                for flat in self._flats:
                    flat.of_step(step).sum_N[gradient_place(tokens, flat.length)] += 1.0
            halves = [flat.of_step(step) for flat in self._flats]
            norm = math.sqrt(math.fsum(squared_norm(half.sum_N) for half in halves))
            update = Update(step + 1, clip_scale(run.optimizer, norm), learning_rate(run, step))
            for half, both in zip(halves, optimizers, strict=True):
                both[step % len(both)].step(half.sum_N, update)
                half.sum_N.zero_()
            yield norm

    def weights(self) -> dict[str, Tensor]:
        """All weights by name, as they are now."""
        return {
            name: parameter.detach()
            for flat in (each.newest(self._run.steps) for each in self._flats)
            for name, parameter in named_parameters(flat.numbers, flat.blocks)
        }
