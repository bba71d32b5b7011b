"""Why a server is gone, as programs are told it."""

import pytest

from p2pswarm.progress.events import Departure
from p2pswarm.trainer.coordinator.incarnations import (
    CLASH,
    NO_GRADIENT,
    SILENT,
    UNFENCED,
    departure,
)
from p2pswarm.trainer.step.result_checks import CONTRADICTS
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS


@pytest.mark.parametrize(
    ("reason", "leaves", "silent", "why"),
    [
        ("it moves to stage 2: +11 % for everybody", False, False, Departure.MOVED),
        ("it moves to stage 2: +11 % for everybody", True, True, Departure.MOVED),
        (OTHER_WEIGHTS, False, True, Departure.WRONG),
        (CONTRADICTS, False, False, Departure.WRONG),
        (CLASH, False, False, Departure.WRONG),
        (NO_GRADIENT, True, False, Departure.WRONG),
        ("it ended its stream", True, False, Departure.ASKED),
        ("the link is lost", False, True, Departure.SILENT),
        (SILENT, False, False, Departure.SILENT),
        (UNFENCED, False, False, Departure.SILENT),
        ("it did not commit in time", False, False, Departure.SILENT),
        ("the link is lost", False, False, Departure.LOST),
        ("it joined anew", False, False, Departure.LOST),
    ],
)
def test_a_departure_has_one_kind(reason, leaves, silent, why):
    assert departure(reason, leaves=leaves, silent=silent) is why
