"""What people read of checkpoints."""

import pytest

from p2pswarm.node.progress.checkpoint_news import checkpoint_event
from p2pswarm.progress.events import Checkpointed, Note
from p2pswarm.trainer.reports.checkpoint_reports import (
    CheckpointFailed,
    CheckpointProgress,
    CheckpointSaved,
)


@pytest.mark.parametrize(
    ("report", "event"),
    [
        (CheckpointSaved(7, "there", 2.5), Checkpointed(1.0, 7, "there", 2.5)),
        (
            CheckpointFailed(7, "the disk is full"),
            Note(1.0, "no checkpoint of step 7: the disk is full"),
        ),
        (
            CheckpointProgress(7, 250_000, 1_000_000, 1, 2),
            Note(1.0, "checkpoint of step 7: 1 of 2 stages saved, 25% of 1.0 MB"),
        ),
        (CheckpointProgress(7, 0, 0, 0, 2), Note(1.0, "checkpoint of step 7: 0 of 2 stages saved")),
    ],
)
def test_a_report_is_told_as_an_event(report, event):
    assert checkpoint_event(report, 1.0) == event
