"""A node whose coordinator chooses other codecs every few steps, whatever its links carry.

    python bench/rotating_node.py --every 3 --config NODE.toml

Everything else is as in `python -m p2pswarm.node`. `bench/exactness.py --rotate 3` starts trainers
and servers so: their run has `codecs.choice = "measured"`, and its records hold the choices.
"""

import functools
import sys
from collections.abc import Sequence

from p2pswarm.cli import main
from p2pswarm.node import train
from p2pswarm.run.chain.chain import CodecTable
from p2pswarm.settings.codec_ladder import allowed_codes
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.codec_choice import BoundaryState, Measurements


class RotatingCodecs:
    """Each boundary has the next of all pairs that the run allows, every few steps."""

    def __init__(self, every: int, run: RunConfig, _present: CodecTable, _version: int) -> None:
        self._every = every
        self._allowed = [sorted(codes | {b""}) for codes in allowed_codes(run.codecs, run.stages)]

    def choose(self, step: int, _stages: Measurements) -> CodecTable:
        """The codes that the record of a step names."""
        turn = step // self._every
        turns = enumerate(self._allowed, turn)
        return tuple(codes[place % len(codes)] for place, codes in turns)

    def boundaries(self) -> Sequence[BoundaryState]:
        """Nothing is measured."""
        return ()

    def why(self, _stage: int) -> str:
        """For people."""
        return "it is its turn"


if __name__ == "__main__":
    at = sys.argv.index("--every")
    _, steps = sys.argv[at : at + 2]
    del sys.argv[at : at + 2]
    rule = functools.partial(RotatingCodecs, int(steps))
    train.TrainerContext = functools.partial(train.TrainerContext, codec_rule=rule)  # type: ignore[misc, assignment]
    sys.exit(main(["node", *sys.argv[1:]]))
