"""What `p2pswarm status` says of the end of a run and of its cost."""

from dataclasses import replace

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.commands.status.texts import as_json, as_lines
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.node.progress.answers import LatestStatus
from p2pswarm.progress.events import (
    Departure,
    Ended,
    Left,
    MicrobatchCounts,
    Started,
    Stepped,
)
from p2pswarm.run.manifest import RunIdentity, RunOffer
from p2pswarm.run.messages.cost import Spent
from p2pswarm.run.messages.status import AskStatus
from p2pswarm.settings.config import RunConfig

RUN = b"r" * 16
ASK = AskStatus(RUN)
OURS = RunConfig(name="ours", stages=2, steps=1_000)
TRAINER = Contact(PeerId(b"t" * 32), Address("203.0.113.7", 4000))
OFFER = RunOffer(RUN, OURS, TRAINER, RunIdentity(OURS, bytes(32), bytes(16), b"t" * 32))
COUNTS = MicrobatchCounts(8, 8, 0)
SPENT = Spent("USD", trainer=5.1, invited=26.1, joining=0.96, tokens=70e6, per_hour=1.83)


def halfway() -> LatestStatus:
    """500 of 1,000 steps are done, 36 s each."""
    latest = LatestStatus(RUN, 2, 0, 8, 1_000)
    latest.on_event(Started(1_000), 0.0)
    for step in range(1, 501):
        latest.on_event(Stepped(step, 2.0, 1.0, 1e-3, 1.0, COUNTS), 36.0 * step)
    return latest


def test_a_status_says_when_the_run_is_done_and_what_it_has_cost():
    status = halfway().answer(ASK, 18_000.0, spent=SPENT)

    assert decode(encode(status)) == status
    lines = as_lines(OFFER, status)
    assert any(line.startswith("  done in 5 hours, give or take ") for line in lines)
    assert any("cost: $31.20 so far, $1.83 an hour" in line for line in lines)
    assert '"invited":26.1' in as_json([(OFFER, status)])


def test_whoever_may_not_know_is_told_no_cost():
    status = halfway().answer(ASK, 18_000.0)

    assert status.spent is None
    assert not any("cost" in line for line in as_lines(OFFER, status))


def test_a_run_without_prices_has_no_cost():
    assert halfway().answer(ASK, 18_000.0, spent=Spent("USD")).spent is None


def test_a_run_that_is_over_has_no_end_to_come():
    latest = halfway()
    latest.on_event(Ended(500, "the budget is spent", False, 1.0, COUNTS), 18_001.0)

    assert latest.answer(ASK, 18_002.0).ends is None


def test_a_lost_server_widens_the_spread():
    calm, hurt = halfway(), halfway()
    hurt.on_event(Left("abc", 0, Departure.SILENT, "it is silent", 0), 18_000.0)

    before, after = (one.answer(ASK, 18_000.0).ends for one in (calm, hurt))

    assert before is not None
    assert after is not None
    assert after.latest_s > before.latest_s


def test_a_status_of_before_there_was_money_keeps_its_bytes():
    status = replace(halfway().answer(ASK, 18_000.0), ends=None)

    assert len(encode(status)) < len(encode(replace(status, spent=SPENT)))
    assert decode(encode(status)) == status
