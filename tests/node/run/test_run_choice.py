"""Tests of `node/run/run_choice.py`."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.guard.dial_budget import HOST_DIALS
from p2pswarm.net.wire.message import encode
from p2pswarm.node.run.run_choice import (
    CLOCKS_DIFFER,
    MANIFESTS_MAX,
    QUOTED_MAX,
    REFUSED_MAX,
    REFUSED_S,
    TELL_AGAIN_S,
    RunChoice,
    VersionNotices,
    in_own_order,
    preferred,
)
from p2pswarm.run.manifest import RunIdentity, RunOffer, UnreadableOffer, sign_manifest
from p2pswarm.run.messages.run import Finished
from p2pswarm.settings.config import RunConfig
from p2pswarm.settings.node_config import ServeConfig
from p2pswarm.settings.parser import RUN_VERSION


def offer(number: int, host: str = "203.0.113.7") -> UnreadableOffer:
    trainer = Contact(PeerId(number.to_bytes(32)), Address(host, 4000))
    return UnreadableOffer(bytes(16), trainer, "another version")


def test_each_trainer_is_told_once_in_an_hour():
    notices = VersionNotices()
    both = [offer(1), offer(2)]

    assert notices.due([offer(1)], 5.0) == [offer(1).trainer]
    assert notices.due(both, 6.0) == [offer(2).trainer]
    assert notices.due(both, 4.9 + TELL_AGAIN_S) == []
    assert notices.due(both, 5.0 + TELL_AGAIN_S) == [offer(1).trainer]
    assert notices.due(both, 6.0 + TELL_AGAIN_S) == [offer(2).trainer]


def test_a_trainer_that_offers_another_run_or_moves_is_told_again():
    notices, first = VersionNotices(), offer(1)
    moved = Contact(first.trainer.peer, Address("203.0.113.9", 4000))
    notices.due([first], 0.0)

    assert notices.due([dataclasses.replace(first, run=b"n" * 16)], 1.0) == [first.trainer]
    assert notices.due([dataclasses.replace(first, trainer=moved)], 1.0) == [moved]


def test_a_flood_of_manifests_has_few_addresses_dialled_in_an_hour():
    notices = VersionNotices(manifests_max=3)

    several = [offer(n, f"{11 + n}.0.0.1") for n in range(101)]
    told = [notices.due(several[n : n + 2], n / 10) for n in range(100)]

    assert sum(map(len, told)) == 3
    assert len(notices.due(several, 10.0 + TELL_AGAIN_S)) == 3


def test_manifests_that_name_one_place_have_it_dialled_a_few_times_in_an_hour_for_all_looks():
    notices = VersionNotices()

    told = [notices.due([offer(n), offer(n + 1)], n / 10) for n in range(100)]

    assert sum(map(len, told)) == HOST_DIALS


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 2000.0)), max_size=30))
def test_between_two_notices_to_one_trainer_lies_an_hour(looks):
    notices, now_s, told_s = VersionNotices(manifests_max=3), 0.0, {}

    for number, pause_s in looks:
        now_s += pause_s
        for trainer in notices.due([offer(number)], now_s):
            assert now_s >= told_s.get(trainer, -TELL_AGAIN_S) + TELL_AGAIN_S
            told_s[trainer] = now_s
        assert sum(now_s < at_s + TELL_AGAIN_S for at_s in told_s.values()) <= 3


FIRST, SECOND, THIRD = sorted(
    (Identity.generate(name) for name in (b"first", b"second", b"third")),
    key=lambda i: i.peer_id.raw,
)


def announced(identity: Identity, name: str, stages: int = 2) -> dict[bytes, bytes]:
    run = RunConfig(name=name, stages=stages)
    manifest = sign_manifest(
        identity,
        RunIdentity(run, bytes(32), bytes(16), b"f" * 32),
        Address("203.0.113.7", 4000),
    )
    return {identity.peer_id.raw: encode(manifest)}


def chosen(choice: RunChoice, manifests: dict[bytes, bytes]) -> RunOffer | None:
    """The run to join if no trainer was asked whether it answers."""
    return preferred(choice.fitting(manifests), ())


def test_a_run_whose_trainer_answers_is_joined_before_one_whose_trainer_does_not():
    offers = RunChoice(ServeConfig()).fitting(announced(FIRST, "a") | announced(SECOND, "b"))

    assert preferred(offers, [offers[1].trainer]).config.name == "b"
    assert preferred(offers, []).config.name == "a"
    assert preferred([], []) is None


def test_a_lost_trainer_is_looked_for_in_its_run_before_other_runs_without_a_remark():
    choice = RunChoice(ServeConfig())
    lost = chosen(choice, announced(SECOND, "b"))

    found = choice.instead_of(lost, announced(FIRST, "a") | announced(SECOND, "b"))

    assert [offer.config.name for offer in found] == ["b", "a"]
    assert choice.instead_of(lost, {}) == []
    assert choice.remarks() == []


def test_a_lost_run_is_not_left_for_one_that_was_not_asked_for():
    choice = RunChoice(ServeConfig(run="b", stage=1))
    lost = chosen(choice, announced(SECOND, "b"))

    assert choice.instead_of(lost, announced(FIRST, "a") | announced(SECOND, "b", stages=1)) == []


def test_without_a_wish_the_first_run_is_joined():
    runs = announced(SECOND, "b") | announced(FIRST, "a")

    offer = chosen(RunChoice(ServeConfig()), runs)

    assert offer.config.name == "b"


def test_no_id_is_the_first_for_all_nodes():
    """The smallest of thousands of ids would be, in the order of ids: a stranger's, then."""
    ground = dict.fromkeys([bytes(32), bytes(31) + b"\1"], b"")
    found = ground | {bytes([number]) * 32: b"" for number in range(1, 9)}

    orders = [list(in_own_order(bytes([own]) * 32, found)) for own in range(100)]

    assert all(sorted(order) == sorted(found) for order in orders)
    assert sum(order[0] in ground for order in orders) < 40
    assert orders[7] == list(in_own_order(b"\7" * 32, dict(reversed(found.items()))))


def test_thousands_of_manifests_are_not_all_read():
    found = {number.to_bytes(32): b"" for number in range(1000)}

    assert len(in_own_order(b"us", found)) == MANIFESTS_MAX


def test_a_stranger_cannot_make_us_talk_for_ever_nor_silence_us():
    choice, said = RunChoice(ServeConfig(run="c")), []
    for number in range(2 * QUOTED_MAX):
        choice.fitting(announced(FIRST, f"{number}"))
        said += choice.remarks()
    assert len(said) == QUOTED_MAX

    choice.fitting({})

    assert choice.remarks() == ["there is no run yet: waiting for a trainer"]


def test_of_many_runs_some_are_named():
    choice = RunChoice(ServeConfig(run="c"))
    many = {}
    for number in range(12):
        many |= announced(Identity.generate(b"%d" % number), f"run {number:02}")

    choice.fitting(many)

    (remark,) = choice.remarks()
    assert remark.endswith(", 'run 06', 'run 07' and 4 more: waiting")


def test_a_run_is_joined_by_its_name():
    choice = RunChoice(ServeConfig(run="b"))

    assert chosen(choice, announced(FIRST, "a") | announced(SECOND, "b")).config.name == "b"
    assert choice.remarks() == []


def test_what_is_missing_is_said_once():
    choice = RunChoice(ServeConfig(run="c"))

    for _ in range(3):
        assert chosen(choice, {}) is None
        assert chosen(choice, announced(FIRST, "a") | announced(SECOND, "b")) is None

    assert choice.remarks() == [
        "there is no run yet: waiting for a trainer",
        "no run is named 'c'; there is 'a', 'b': waiting",
    ]
    assert choice.remarks() == []


def test_a_run_without_the_wanted_stage_is_not_joined():
    choice = RunChoice(ServeConfig(stage=5))

    assert chosen(choice, announced(FIRST, "a", stages=2)) is None
    assert choice.remarks() == [
        "run 'a' has no stage 5 (serve.stage), its stages are 0 to 1: waiting for another run"
    ]


def test_another_run_may_have_the_wanted_stage():
    choice = RunChoice(ServeConfig(stage=2))

    offer = chosen(choice, announced(FIRST, "a", stages=2) | announced(SECOND, "b", stages=3))

    assert offer.config.name == "b"


def test_a_run_that_is_over_is_not_joined_again_and_its_next_wait_is_told():
    choice, runs = RunChoice(ServeConfig()), announced(FIRST, "a")
    assert chosen(choice, {}) is None
    offer = chosen(choice, runs)

    choice.over(offer)

    assert chosen(choice, runs) is None
    assert choice.remarks() == ["there is no run yet: waiting for a trainer"] * 2


def test_a_run_that_ended_under_another_trainer_than_it_was_found_by_is_over_for_both():
    choice, runs = RunChoice(ServeConfig()), announced(FIRST, "a") | announced(SECOND, "a")
    found, returned = choice.fitting(runs)

    choice.over(found)
    choice.over(dataclasses.replace(found, trainer=returned.trainer))

    assert chosen(choice, runs) is None


def test_runs_that_were_given_up_are_tried_after_all_others_in_turn():
    """A stranger that invents runs answers pings, and no more."""
    choice = RunChoice(ServeConfig())
    runs = announced(FIRST, "a") | announced(SECOND, "b") | announced(THIRD, "c")
    names = []
    for _ in range(7):
        offer = preferred(choice.fitting(runs), [o.trainer for o in choice.fitting(runs)])
        names.append(offer.config.name)
        choice.give_up(offer)

    assert names == ["a", "b", "c", "a", "b", "c", "a"]
    assert chosen(choice, announced(FIRST, "a")).config.name == "a"


def test_the_trainer_of_a_run_of_another_version_is_to_be_told():
    newer = RUN_VERSION + 1
    choice = RunChoice(ServeConfig(), version=newer)

    assert chosen(choice, announced(FIRST, "a")) is None

    assert choice.to_be_told(0.0) == [Contact(FIRST.peer_id, Address("203.0.113.7", 4000))]
    assert choice.to_be_told(0.0) == []
    why = (
        f"a run of version {RUN_VERSION}; this program speaks version {newer}: "
        "install the same release on both sides"
    )
    assert choice.remarks() == [
        f"a run cannot be joined: {why}",
        "there is no run yet: waiting for a trainer",
    ]


def test_a_trainer_whose_record_has_gone_is_not_told():
    choice = RunChoice(ServeConfig(), version=2)
    chosen(choice, announced(FIRST, "a"))

    chosen(choice, {})

    assert choice.to_be_told(0.0) == []


def test_nobody_is_told_because_of_a_record_that_its_trainer_did_not_sign():
    choice = RunChoice(ServeConfig(), version=2)
    value = announced(FIRST, "a")[FIRST.peer_id.raw]
    moved = value.replace(b"203.0.113.7", b"203.0.113.8")
    assert moved != value

    assert chosen(choice, {FIRST.peer_id.raw: moved, SECOND.peer_id.raw: value}) is None

    assert choice.to_be_told(0.0) == []


def test_a_run_that_can_be_read_is_joined_and_its_trainer_not_told():
    choice = RunChoice(ServeConfig())

    assert chosen(choice, announced(FIRST, "a")) is not None

    assert choice.to_be_told(0.0) == []


def test_a_manifest_that_cannot_be_used_is_named_and_passed_over():
    choice = RunChoice(ServeConfig())
    runs = {
        bytes(32): encode(Finished("over")),
        b"\1" * 32: announced(FIRST, "a")[FIRST.peer_id.raw],
        **announced(SECOND, "b"),
    }

    assert chosen(choice, runs).config.name == "b"
    assert choice.remarks() == [
        "a run cannot be joined: a record with a Finished for a manifest",
        "a run cannot be joined: a manifest under another peer's name",
    ]


def test_without_a_run_that_our_clock_allows_the_clocks_are_named():
    choice = RunChoice(ServeConfig())

    assert choice.fitting({}, clocks_differ=True) == []

    assert choice.remarks() == [CLOCKS_DIFFER]


def test_a_run_that_cannot_be_served_is_passed_over_for_a_while_and_said_once():
    choice = RunChoice(ServeConfig())
    found = announced(Identity.generate(b"1"), "bad") | announced(Identity.generate(b"2"), "good")
    bad = next(one for one in choice.fitting(found) if one.config.name == "bad")

    for now_s in (5.0, 5.0 + REFUSED_S):
        choice.retry(now_s)
        choice.refuse(bad, "it needs a package that is not here", now_s)
        assert [one.config.name for one in choice.fitting(found)] == ["good"]
        assert choice.instead_of(bad, found)[0].config.name == "good"
        choice.retry(now_s + REFUSED_S - 1)
        assert [one.config.name for one in choice.fitting(found)] == ["good"]

    said = choice.remarks()
    assert len(said) == 1
    assert "'bad'" in said[0]
    assert "it needs a package that is not here; waiting for another run" in said[0]
    choice.retry(5.0 + 2 * REFUSED_S)
    assert len(choice.fitting(found)) == 2


def test_a_flood_of_runs_that_cannot_be_served_takes_little_memory():
    choice = RunChoice(ServeConfig())
    (bad,) = choice.fitting(announced(Identity.generate(b"1"), "bad"))

    for number in range(REFUSED_MAX + 10):
        choice.refuse(dataclasses.replace(bad, run=number.to_bytes(16)), "no", 0.0)

    assert len(choice._refused_s) == REFUSED_MAX
    assert len(choice.remarks()) <= QUOTED_MAX


def test_the_founders_offer_of_a_run_goes_before_those_of_others():
    """Anybody can sign a manifest of it, and call itself a trainer."""
    founder, other = Identity.generate(b"founder"), Identity.generate(b"other")
    run = RunIdentity(RunConfig(name="one"), bytes(32), bytes(16), founder.peer_id.raw)
    here = Address("203.0.113.7", 4000)
    found = {one.peer_id.raw: encode(sign_manifest(one, run, here)) for one in (other, founder)}
    offers = RunChoice(ServeConfig()).fitting(found)

    assert preferred(offers, [one.trainer for one in offers]).trainer.peer == founder.peer_id
    others = [one.trainer for one in offers if one.trainer.peer == other.peer_id]
    assert preferred(offers, others).trainer.peer == other.peer_id
