"""Real processes that rehearse: a fast server moves to the slow stage, and not one bit is lost."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from emulated_weights import RehearsalReference, configured
from exactness import compare, written
from swarm_processes import Run, Site, events, swarm

from p2pswarm.progress.events import Ended, Note, Peers, Relocated

SERVE = '[serve]\nthreads = 1\ndevice = "emulated"\n'
FAST = SERVE + "emulated_forward_s = 0.04\n"
# docs/training.md: why a microbatch is sent again though no server is gone
SHARES = "a server has come that shares the work"
STEALS = "another of its stage no work"
SLOW = SERVE + "emulated_forward_s = 0.5\nstage = 1\n"
STEPS = 24  # of a second or so: a move needs some, since a gain has to last
BALANCE = "[run.balance]\nsteady_s = 1.0\n"


class Balanced(Run):
    """A run whose servers move soon."""

    def settings(self) -> str:
        """As the trainer's TOML has it."""
        return super().settings() + BALANCE


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_fast_server_moves_to_the_slow_stage_and_the_weights_are_the_same_bits(tmp_path):
    """Two slow servers of stage 1 come first: then stage 0 is given three fast ones of four."""
    run = Balanced(
        name="moves",
        steps=STEPS,
        min_replicas=3,
        d_model=16,
        layers=2,
        heads=2,
        sequence_length=16,
        microbatches=8,
        dtype="float64",
        codec="raw",
        weights=str(tmp_path / "swarm.safetensors"),
        emulated=True,
    )
    told, fast = [], 4
    with swarm(Site(), run, [SLOW] * 2, 280.0) as nodes:
        for event in events(nodes.lines("trainer")):
            told.append(event)
            if fast and isinstance(event, Peers) and len(event.peers) == 2:
                while fast:
                    nodes.start_server(FAST)
                    fast -= 1

    moves = [event for event in told if isinstance(event, Relocated)]
    assert moves, [event.text for event in told if isinstance(event, Note)]
    assert (moves[0].source, moves[0].target) == (0, 1)
    assert moves[0].gain > 0.2
    (ended,) = [event for event in told if isinstance(event, Ended)]
    assert ended.counts.counted == STEPS * 8
    again = [event.text for event in told if isinstance(event, Note) and "sent again" in event.text]
    assert all(SHARES in text or STEALS in text for text in again), again  # no move has lost one
    expected = RehearsalReference(configured(run))
    list(expected.norms())
    assert compare(written(tmp_path), expected.weights())[0] == 0.0
