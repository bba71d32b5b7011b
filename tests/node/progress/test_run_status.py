"""What a trainer says about its run, and what a user reads of it."""

import json
from dataclasses import replace

import pytest

from p2pswarm.base.errors import NotServing
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.commands.status.texts import as_json, as_lines, nothing_found, reached_at
from p2pswarm.net.guard.bans import Ban, Offence
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.progress.answers import LatestStatus
from p2pswarm.progress.events import (
    Checkpointed,
    Ended,
    HeldOut,
    MicrobatchCounts,
    Note,
    PeerLine,
    Peers,
    Started,
    Stepped,
    Waiting,
)
from p2pswarm.run.manifest import RunIdentity, RunOffer
from p2pswarm.run.messages.field_limits import REASON_CHARS, PathCounts
from p2pswarm.run.messages.status import (
    BANS_TOLD_MAX,
    AskStatus,
    BanStatus,
    RunStatus,
    StageStatus,
)
from p2pswarm.settings.config import RunConfig

RUN = b"r" * 16
ASK = AskStatus(RUN)
TRAINER = Contact(PeerId(b"t" * 32), Address("203.0.113.7", 4000))
OURS = RunConfig(name="ours", stages=2, steps=2000)
OFFER = RunOffer(RUN, OURS, TRAINER, RunIdentity(OURS, bytes(32), bytes(16), b"t" * 32))
COUNTS = MicrobatchCounts(1_024, 1_016, 3)


def stepped(loss: float = 1.5) -> Stepped:
    return Stepped(127, loss, 9_000.0, 1e-3, 0.5, COUNTS, seconds=12.0)


def test_a_run_that_waits_for_its_servers_says_for_which():
    latest = LatestStatus(RUN, stages=2)
    latest.on_event(Waiting((0, 1)), 5.0)

    status = latest.answer(ASK, 9.0)

    assert status.waiting == (0, 1)
    assert (status.done, status.loss, status.held_out, status.committed_ago_s) == (0,) + (None,) * 3
    assert status.stages == (StageStatus(0, 0), StageStatus(0, 0))


def test_the_newest_of_each_kind_of_event_is_told():
    latest = LatestStatus(RUN, stages=2)
    for event in (
        Waiting((1,)),
        Started(10),
        Waiting(()),
        Peers((PeerLine("a", 0, True, 0, 0.0),), seconds=1.0),
        Peers(
            tuple(PeerLine(p, s, p != "c", 0, 0.0) for p, s in (("a", 0), ("b", 1), ("c", 1))),
            seconds=2.0,
        ),
        HeldOut(100, 1.6, seconds=3.0),
        stepped(2.0),
        stepped(1.5),
        Note("a message for people", seconds=4.0),
    ):
        latest.on_event(event, 20.0)

    status = latest.answer(ASK, 22.5)

    assert (status.done, status.loss, status.held_out) == (127, 1.5, 1.6)
    assert status.committed_ago_s == 2.5
    assert (status.asked, status.counted, status.replayed) == (1_024, 1_016, 3)
    assert status.waiting == ()
    assert status.stages == (StageStatus(1, 0), StageStatus(1, 1))
    assert decode(encode(status)) == status


def test_a_loss_that_is_no_number_is_not_told():
    latest = LatestStatus(RUN, stages=2)
    latest.on_event(stepped(float("nan")), 20.0)
    latest.on_event(HeldOut(2, float("inf"), seconds=1.0), 20.0)

    status = latest.answer(ASK, 21.0)

    assert status.loss is None
    assert status.held_out is None
    assert decode(encode(status)) == status


def test_a_run_that_is_over_says_why_however_long_the_reason_is():
    latest = LatestStatus(RUN, stages=2)
    latest.on_event(stepped(), 20.0)
    latest.on_event(
        Ended(128, "x" * 1_000, True, 8_000.0, MicrobatchCounts(9, 8, 7), seconds=30.0), 21.0
    )

    status = latest.answer(ASK, 22.0)

    assert status.ended == "x" * REASON_CHARS
    assert (status.asked, status.counted, status.replayed) == (9, 8, 7)
    assert decode(encode(status)) == status


def test_another_run_is_not_told_about():
    with pytest.raises(NotServing, match="look up the runs again"):
        LatestStatus(RUN, stages=2).answer(AskStatus(b"R" * 16), 1.0)


def status(**changes) -> RunStatus:
    values = {
        "done": 127,
        "loss": 1.5,
        "held_out": 1.6,
        "tokens_per_s": 9_000.4,
        "committed_ago_s": 2.5,
        "asked": 1_024,
        "counted": 1_016,
        "replayed": 3,
        "waiting": (),
        "stages": (StageStatus(2, 0), StageStatus(1, 1)),
        "ended": "",
    }
    return RunStatus(**(values | changes))


def test_a_run_that_trains_is_four_lines():
    assert as_lines(OFFER, status()) == [
        f"run 'ours', id {RUN.hex()}, trainer at 203.0.113.7:4000",
        (
            "  step 127 of 2,000, loss 1.5000, held-out loss 1.6000, 9,000 tokens/s, "
            "last commit 2.5 s ago"
        ),
        "  servers: stage 0: 2 ready, stage 1: 1 ready and 1 joining",
        "  microbatches: 1,024 asked, 1,016 counted, 3 replayed",
    ]


def test_a_trainer_is_named_where_it_was_reached_and_else_as_it_says():
    through_a_relay = replace(OFFER, trainer=Contact(TRAINER.peer, Address("198.51.100.1", 1)))
    seen = {TRAINER.peer: TRAINER.address}

    assert reached_at(through_a_relay, seen.get) == OFFER
    assert reached_at(through_a_relay, {}.get) == through_a_relay


def test_the_age_of_the_newest_checkpoint_is_told():
    latest = LatestStatus(RUN, stages=2, done=100)
    assert latest.answer(ASK, 5.0).saved is None
    latest.on_event(Checkpointed(110, "/there", 1.0, seconds=3.0), 10.0)
    latest.on_event(Checkpointed(120, "/there", 1.0, seconds=4.0), 20.0)

    status = latest.answer(ASK, 95.0)

    assert (status.done, status.saved, status.saved_ago_s) == (100, 120, 75.0)
    assert decode(encode(status)) == status


def test_a_trainer_that_came_back_tells_the_steps_that_are_done_before_it_does_one():
    latest = LatestStatus(RUN, stages=2, done=40, microbatches=8)

    before = latest.answer(ASK, 5.0)
    assert (before.done, before.asked, before.counted, before.loss) == (40, 320, 320, None)

    latest.go_on_after(43)
    assert latest.answer(ASK, 6.0).done == 43


def test_a_run_that_goes_back_tells_the_step_that_it_has_gone_back_to():
    latest = LatestStatus(RUN, stages=2, microbatches=8)
    latest.on_event(Stepped(50, 2.0, 1.0, 0.1, 1.0, MicrobatchCounts(408, 400, 0)), 10.0)

    latest.go_on_after(40)

    status = latest.answer(ASK, 11.0)
    assert (status.done, status.counted, status.committed_ago_s) == (40, 320, None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (119, "119 s"), (150, "2 minutes"), (7_200, "2 hours"), (1e6, "12 days")],
)
def test_people_read_when_the_last_checkpoint_was(seconds, text):
    lines = as_lines(OFFER, status(saved=1_200, saved_ago_s=float(seconds)))

    assert lines[-1] == f"  checkpoint: step 1,200, {text} ago"


def test_a_run_that_waits_has_no_loss_yet():
    waits = status(done=0, loss=None, held_out=None, committed_ago_s=None, waiting=(0, 1))

    assert as_lines(OFFER, waits)[1] == "  step 0 of 2,000, waiting for a server of stage 0, 1"


def test_the_reason_of_a_trainer_cannot_move_the_cursor():
    over = as_lines(OFFER, status(ended="done\x1b[2J\r\nall is well"))[1]

    assert over == "  over after step 127 of 2,000: done?[2J??all is well"


def test_a_trainer_that_does_not_answer_is_said_to_be_gone():
    assert as_lines(OFFER, None)[1].startswith("  its trainer does not answer")


def test_people_see_how_the_links_of_a_stage_lead():
    latest = LatestStatus(RUN, stages=2)
    at_home = PeerLine("a", 0, True, 0, 0.0, direct=1, punched=2)
    latest.on_event(Peers((at_home, PeerLine("b", 0, True, 0, 0.0, relayed=3)), seconds=1.0), 1.0)

    stages = latest.answer(ASK, 2.0).stages

    assert stages[0].links == PathCounts(direct=1, punched=2, relayed=3)
    said = as_lines(OFFER, status(stages=stages))[2]
    assert "stage 0: 2 ready (links: 1 direct, 2 punched, 3 relayed), stage 1: 0 ready" in said


def test_scripts_get_every_run_on_one_line():
    told = json.loads(as_json([(OFFER, status()), (OFFER, None)]))["runs"]

    assert told[0]["name"] == "ours"
    links = {"direct": 0, "mapped": 0, "punched": 0, "relayed": 0}
    assert told[0]["status"]["stages"][1] == {"ready": 1, "joining": 1, "links": links}
    assert told[1]["status"] is None


def test_a_name_that_no_run_has_is_answered_with_those_there_are():
    assert nothing_found("ours", ["theirs", "his"]) == (
        "no run is named 'ours'; there is 'his', 'theirs'"
    )
    assert "p2pswarm train" in nothing_found("ours", [])


def test_whom_the_trainer_has_banned_is_told_with_the_reason_and_the_time_that_is_left():
    bans = [Ban(bytes([n]) * 32, Offence.FRAME, 100.0 - n) for n in range(BANS_TOLD_MAX + 1)]
    there = LatestStatus(RUN, stages=2).answer(ASK, 40.0, bans)

    assert decode(encode(there)) == there
    assert len(there.bans) == BANS_TOLD_MAX
    short = PeerId(bytes(32)).short
    assert as_lines(OFFER, there)[-BANS_TOLD_MAX] == (
        f"  {short} is banned for another 1 min: it sent frames that break the protocol"
    )
    shown = json.loads(as_json([(OFFER, there)]))["runs"][0]["status"]["bans"]
    assert shown[0]["peer"] == str(PeerId(bytes(32)))


def test_a_reason_from_elsewhere_has_no_escape_sequences():
    banned = BanStatus(b"e" * 32, "\x1b[2J", 5.0)

    assert "\x1b" not in as_lines(OFFER, status(bans=(banned,)))[-1]


def test_a_closed_run_whose_trainer_does_not_answer_may_be_closed_to_us():
    closed = replace(OFFER, config=replace(OURS, owner="a" * 64, strangers="nothing"))

    assert "not invited" in as_lines(closed, None)[1]
    assert "not invited" not in as_lines(OFFER, None)[1]
