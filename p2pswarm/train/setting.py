"""What a trainer is given once, by whoever composes it."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.config import RunConfig
from p2pswarm.rpc.base import Rpc
from p2pswarm.swarm.messages import Manifest
from p2pswarm.tensors.service import Tensors
from p2pswarm.train import actions as act
from p2pswarm.train.corpus import Corpus


@dataclass(frozen=True, slots=True)
class TrainSetting:
    """The network, the run and its text."""

    rpc: Rpc
    tensors: Tensors
    run: RunConfig
    manifest: Manifest
    run_id: bytes
    corpus: Corpus
    report: Callable[[act.Report], None]
    """Told what a person may want to know, as it happens."""
    rng: random.Random
