"""`p2pswarm explain`: where a step's seconds go, and who waits for whom."""

import json
from dataclasses import replace

from p2pswarm.base.ids import PeerId
from p2pswarm.commands.status.step_texts import NOT_MEASURED, why_fields, why_lines
from p2pswarm.run.messages.status import PeerName
from p2pswarm.run.messages.waits import ChainLink, JourneyPart, RunWhy, StageSeconds, StepSeconds

ANN = b"a" * 32
SHORT = PeerId(ANN).short
ROWS = (
    StageSeconds(2, StepSeconds(1.0, 0.5, 0.01, 0.2, 0.04, 1.15), ANN),
    StageSeconds(0, StepSeconds(), b"", 1),
)
CHAIN = (
    ChainLink(JourneyPart.FILLING, 0, ANN, 1.6),
    ChainLink(JourneyPart.LAUNCH, None, b"", 0.02),
    ChainLink(JourneyPart.FORWARD, 0, ANN, 0.5),
    ChainLink(JourneyPart.BACKWARD, 0, ANN, 0.3),
    ChainLink(JourneyPart.CLOSING, None, b"", 0.07),
    ChainLink(JourneyPart.AVERAGING, 0, ANN, 0.4),
    ChainLink(JourneyPart.DECIDING, None, b"", 0.01),
)
WHY = RunWhy(12, 2.9, 2.8, 0.4, ROWS, CHAIN, "")


def test_machines_have_their_names_beside_the_short_ids():
    why = replace(WHY, names=(PeerName(ANN, "attic\x1b"),))

    *_, row, _, chain = why_lines(why)

    assert row.endswith(f"{SHORT} (attic?) waited least")
    assert f"{SHORT} (attic?) of stage 0 is busiest" in chain
    assert why_fields(why)["names"] == {SHORT: "attic?"}


def test_the_lines_have_a_row_for_each_stage_and_the_slowest_chain():
    row = f"        0       2     1.000     0.500     0.040     1.150     0.200     0.010   {SHORT}"
    chain = (
        f"  the slowest chain took 2.9 s: 1.6 s until the last microbatch sets out, {SHORT} "
        f"of stage 0 is busiest, 20 ms until the first stage has it, 500 ms forward at {SHORT} "
        f"of stage 0, 300 ms backward at {SHORT} of stage 0, "
        "70 ms until all is known to be counted, "
        f"400 ms averaging, last at {SHORT} of stage 0, 10 ms until the record is decided"
    )
    assert why_lines(WHY) == [
        "  step 12 took 2.9 s, usually 2.8 s; the next one is under way for 400 ms; in seconds:",
        "    stage servers   forward  backward  transfer   waiting averaging    commit",
        f"{row} waited least",
        "        1       0   not measured yet   1 with claims that do not fit",
        chain,
    ]


def test_a_stall_is_the_first_line_and_nothing_in_it_moves_a_cursor():
    stalled = RunWhy(0, 0.0, None, 0.0, (), (), "step 3 takes 9 s: \x1b[2Jnobody")

    assert why_lines(stalled) == ["  step 3 takes 9 s: ?[2Jnobody", f"  {NOT_MEASURED}"]


def test_a_trainer_that_does_not_say_is_passed_over():
    assert why_lines(None) == []
    assert why_fields(None) is None


def test_scripts_read_the_same_numbers():
    fields = json.loads(json.dumps(why_fields(WHY)))

    assert fields["stages"][0]["waiting_s"] == 1.15
    assert fields["chain"][0] == {"part": "filling", "stage": 0, "server": SHORT, "took_s": 1.6}
    assert (fields["step"], fields["took_s"], fields["stalled"]) == (12, 2.9, "")
