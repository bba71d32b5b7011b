from dataclasses import replace

import pytest
from run.chain.harness import (
    MICROBATCHES,
    back,
    chain_of,
    commit,
    genesis,
    key,
    peer,
    revote,
    stage_commit,
    state_of,
    voter,
)

from p2pswarm.run.chain.chain import (
    WINDOW,
    BrokenRecord,
    Chain,
    ChainHead,
    Fork,
    Genesis,
    may_change,
)
from p2pswarm.run.chain.record import CommitRecord, Contributor, digest, first_number, sign
from p2pswarm.settings.codec_ladder import CodecChoices


def test_commits_follow_each_other():
    chain, records = chain_of(3)

    assert chain.head == ChainHead.of(records[-1])
    assert (chain.head.height, chain.head.version) == (3, 3)
    assert chain.last == records[-1]
    assert [chain.digest_at(height) for height in range(4)] == [*map(digest, records), None]


WRONG = {
    "of another run": {"run": b"x" * 16},
    "stands at 3, not 1": {"height": 3},
    "follows another record": {"prev": bytes(32)},
    "its term 0 is below 1": {"term": 0},
    "other voters of the record before": {"voters_before": (voter("a"),)},
    "shuts its own coordinator out": {"trainers": (peer("b"),)},
    "names a trainer twice": {"trainers": (peer("a"), peer("b"), peer("a"))},
    "voters change by too many": {"voters": (voter("d"), voter("e"), voter("c"))},
    "has 2 stages": {"stages": (stage_commit(1, 1), stage_commit(1, 1, 1))},
    "of step 2, not 1": {"step": 2, "first": 4},
    "counts 3 microbatches, not 2": {"count": 3},
    "microbatches begin at 5": {"first": 5},
    "generation is of another term": {"generation": first_number(2)},
    "says 2 is saved": {"saved": 2},
    "stage 0 has 0 members": {"stages": (stage_commit(1, 1, members=(), holders=b""),)},
    "stage 0 has 1 microbatches counted": {"stages": (stage_commit(1, 1, holders=b"\0"),)},
    "a count of a member it lacks": {"stages": (stage_commit(1, 1, holders=b"\0\2"),)},
    "no digest of its gradient": {"stages": (stage_commit(1, 1, gradient=b""),)},
    "a life of another term": {"stages": (stage_commit(1, 2),)},
    "names a member twice": {
        "stages": (stage_commit(1, 1, members=(Contributor(peer("s"), first_number(1)),) * 2),)
    },
}


@pytest.mark.parametrize("what", WRONG)
def test_what_breaks_a_rule_does_not_follow(what):
    chain, _ = chain_of(1)
    head = chain.head

    with pytest.raises(BrokenRecord, match=what):
        chain.append(commit(head, **WRONG[what]))

    assert chain.head is head


def test_a_microbatch_is_set_aside_in_all_stages_or_in_none():
    stages = stage_commit(0, 1, holders=b"\xff\1"), stage_commit(0, 1, 1, holders=b"\xff\0")
    origin = replace(genesis(), stages=2)
    chain = Chain(origin)
    with pytest.raises(BrokenRecord, match="in one stage and counts it in another"):
        chain.append(commit(chain.head, stages=(stages[0], stage_commit(0, 1, 1))))

    assert chain.append(commit(chain.head, stages=stages))


def test_only_a_trainer_that_the_record_before_names_can_make_a_record():
    chain, _ = chain_of(1)

    with pytest.raises(BrokenRecord, match="is no trainer"):
        chain.append(commit(chain.head, "c", trainers=(peer("c"),)))


def test_a_record_with_a_wrong_signature_does_not_follow():
    chain, _ = chain_of(1)

    with pytest.raises(BrokenRecord, match="its signature is wrong"):
        chain.append(replace(commit(chain.head), loss=0.0))


def test_a_record_that_comes_again_is_known():
    chain, records = chain_of(3)

    assert not chain.append(records[1])
    assert chain.head.height == 3


def test_a_second_record_in_one_place_is_a_fork_and_is_named():
    chain, records = chain_of(3)
    rival = commit(ChainHead.of(records[0]), "b")

    with pytest.raises(Fork, match=f"place 1 of the run: {digest(records[1]).hex()[:8]} here"):
        chain.append(rival)

    assert chain.last == records[-1]


def test_the_chain_goes_back_and_forward_again():
    chain, _ = chain_of(4)

    chain.append(back(chain.head, 2))
    chain.append(commit(chain.head))

    assert (chain.head.height, chain.head.version) == (6, 3)


def test_the_chain_may_go_back_twice():
    chain, _ = chain_of(4)

    chain.append(back(chain.head, 2))
    chain.append(back(chain.head, 1))

    assert chain.head.version == 1


def test_the_chain_may_go_back_to_the_version_that_it_is_at_and_fixes_its_state():
    chain, _ = chain_of(4)
    chain.append(back(chain.head, 4))

    assert chain.head.version == 4
    with pytest.raises(BrokenRecord, match="version 4 was another one"):
        chain.append(commit(chain.head, stages=(stage_commit(7, 1),)))
    assert chain.append(commit(chain.head))


def test_the_era_counts_how_often_the_chain_went_back():
    chain, _ = chain_of(4)
    eras = [chain.era]
    for version in (2, 2, 1):
        chain.append(back(chain.head, version))
        eras.append(chain.era)
    chain.append(commit(chain.head))

    assert [*eras, chain.era] == [0, 1, 2, 3, 3]


BACKWARDS = {
    "goes back to 5 from 4": {"step": 5},
    "says 3 is saved": {"saved": 3},
    "goes back and commits at once": {"count": MICROBATCHES},
    "it counts what it ends": {"stages": (stage_commit(2, 1),)},
    "version 2 was another one": {
        "stages": (stage_commit(2, 1, members=(), holders=b"", gradient=b"", state=state_of(9)),)
    },
}


@pytest.mark.parametrize("what", BACKWARDS)
def test_a_back_that_breaks_a_rule_does_not_follow(what):
    chain, _ = chain_of(4)

    with pytest.raises(BrokenRecord, match=what):
        chain.append(back(chain.head, 2, **BACKWARDS[what]))


def test_the_step_after_a_back_begins_with_the_version_that_the_back_named():
    chain, _ = chain_of(4)
    chain.append(back(chain.head, 2))

    with pytest.raises(BrokenRecord, match="version 2 was another one"):
        chain.append(commit(chain.head, stages=(stage_commit(7, 1),)))


REVOTES = {
    "of version 3, not 4": {"step": 3},
    "of version 5, not 4": {"step": 5},
    "says 3 is saved": {"saved": 3},
    "changes the voters and commits at once": {"count": MICROBATCHES},
    "counts, and changes the voters only": {"stages": (stage_commit(4, 1, state=bytes(32)),)},
    "names a state of the weights": {
        "stages": (stage_commit(4, 1, members=(), holders=b"", gradient=b""),)
    },
    "its voters change by too many": {"voters": (voter("a"), voter("d"), voter("e"))},
}


@pytest.mark.parametrize("what", REVOTES)
def test_a_record_of_voters_that_breaks_a_rule_does_not_follow(what):
    chain, _ = chain_of(4)

    with pytest.raises(BrokenRecord, match=what):
        chain.append(revote(chain.head, **REVOTES[what]))


def test_voters_may_be_changed_before_the_first_step():
    chain, _ = chain_of(0)

    chain.append(revote(chain.head))
    chain.append(commit(chain.head))

    assert (chain.head.height, chain.head.version) == (2, 1)


def test_a_record_of_voters_changes_who_votes_and_leads_and_nothing_else():
    chain, records = chain_of(4)
    before, voters = chain.head, (voter("a"), voter("b"), voter("d"))

    chain.append(revote(chain.head, voters=voters, trainers=(*before.trainers, peer("z"))))

    head = chain.head
    assert (head.height, head.version, head.saved) == (5, 4, before.saved)
    assert (head.voters, head.trainers) == (voters, (*before.trainers, peer("z")))
    assert chain.last == records[-1]
    assert chain.era == 0
    assert chain.append(commit(chain.head))
    assert chain.head.version == 5


def test_what_a_back_named_is_still_asked_for_after_a_record_of_voters():
    chain, _ = chain_of(4)
    backward = back(chain.head, 2)
    chain.append(backward)
    chain.append(revote(chain.head))

    assert chain.last == backward
    with pytest.raises(BrokenRecord, match="version 2 was another one"):
        chain.append(commit(chain.head, stages=(stage_commit(7, 1),)))
    assert chain.append(commit(chain.head))


def test_the_run_may_go_back_after_a_record_of_voters():
    chain, _ = chain_of(3)
    chain.append(revote(chain.head))
    chain.append(back(chain.head, 3))

    assert (chain.head.version, chain.era) == (3, 1)


CHOICE = b"\x07\x0a"
ALLOWED = (frozenset({CHOICE, b"\x04\x09"}),)
CHOOSING = replace(genesis(), codecs=CodecChoices(ALLOWED))
DELAYED = replace(genesis(), codecs=CodecChoices(ALLOWED, 3))


def choosing(chain: Chain, codes: bytes) -> None:
    """Append a commit that chooses codecs."""
    stages = (stage_commit(chain.head.version, 1, codecs=codes),)
    chain.append(commit(chain.head, stages=stages))


def test_a_commit_chooses_the_codecs_of_the_step_after_the_next():
    chain = Chain(CHOOSING)
    for codes in (b"", CHOICE, CHOICE, b"\x04\x09", b""):
        choosing(chain, codes)

    held = [chain.codecs(step) for step in range(8)]

    assert held == [(), (), (), (CHOICE,), (CHOICE,), (b"\x04\x09",), (), ()]


def test_with_a_delay_a_commit_chooses_the_codecs_of_one_step_later():
    chain = Chain(DELAYED)
    for codes in (CHOICE, b"\x04\x09"):
        choosing(chain, codes)

    held = [chain.codecs(step) for step in range(6)]

    assert held == [(), (), (), (CHOICE,), (b"\x04\x09",), ()]
    assert chain.chosen == ((), (CHOICE,), (b"\x04\x09",))


def test_after_a_back_with_a_delay_all_steps_that_may_be_served_have_the_codecs_they_had():
    chain = Chain(DELAYED)
    for codes in (CHOICE, b"\x04\x09", CHOICE, b"\x04\x09"):
        choosing(chain, codes)
    chain.append(back(chain.head, 2))

    assert chain.chosen == ((), (CHOICE,), (b"\x04\x09",))


def test_after_a_back_the_codecs_are_those_of_the_steps_that_stand():
    chain = Chain(CHOOSING)
    for codes in (CHOICE, CHOICE, b"\x04\x09", b"\x04\x09"):
        choosing(chain, codes)
    chain.append(back(chain.head, 2))
    choosing(chain, b"")

    assert [chain.codecs(step) for step in range(6)] == [(), (), (CHOICE,), (CHOICE,), (), ()]


def test_a_run_that_goes_on_from_a_checkpoint_begins_as_its_manifest_says():
    chain = Chain(CHOOSING.after(5, b"c" * 32))
    choosing(chain, CHOICE)

    assert [chain.codecs(step) for step in range(5, 9)] == [(), (), (CHOICE,), ()]


@pytest.mark.parametrize("origin", [genesis(), CHOOSING])
def test_codecs_that_the_run_does_not_allow_do_not_follow(origin):
    chain = Chain(origin)

    with pytest.raises(BrokenRecord, match="it chooses codecs 0101 above stage 0, which the run"):
        choosing(chain, b"\x01\x01")


@pytest.mark.parametrize("make", [revote, lambda head, **c: back(head, 1, **c)])
def test_only_a_commit_chooses_codecs(make):
    chain = Chain(CHOOSING)
    for _ in range(2):
        choosing(chain, b"")
    record = make(chain.head)
    stages = (replace(record.stages[0], codecs=CHOICE),)

    with pytest.raises(BrokenRecord, match="counts"):
        chain.append(make(chain.head, stages=stages))


def test_memory_of_old_records_is_bounded():
    chain, records = chain_of(1)
    chain._digests.extend(bytes(32) for _ in range(WINDOW))

    assert chain.digest_at(chain.head.height - WINDOW - 1) is None
    assert len(chain._digests) == WINDOW
    assert records


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("abc", "abc", True),
        ("abc", "abd", True),
        ("a", "abc", True),
        ("abc", "b", True),
        ("abcde", "abc", True),
        ("abc", "abcde", True),
        ("a", "b", True),
        ("a", "ab", False),
        ("abc", "ab", False),
        ("abc", "ade", False),
        ("a", "bcd", False),
        ("abcde", "a", False),
        ("abc", "abb", False),
        ("abcde", "abcdefg", False),
    ],
)
def test_voters_change_by_one_or_grow_or_shrink_by_two(before, after, allowed):
    names = [tuple(voter(name) for name in some) for some in (before, after)]

    assert may_change(*names) is allowed


def test_the_same_peer_with_another_file_is_another_voter():
    before = (voter("a"), voter("b"), voter("c"))

    assert may_change(before, (voter("a"), voter("b"), voter("c", 1)))
    assert not may_change(before, (voter("a"), voter("b", 1), voter("c", 1)))


def test_a_run_begins_with_its_founder_alone():
    founded = Genesis.founded(b"0123456789abcdef", peer("a"), 1, 2)
    chain = Chain(founded)

    assert [one.peer for one in chain.head.voters] == [peer("a")]
    assert chain.head.voters[0].memory == b"01234567"
    assert chain.head.trainers == (peer("a"),)


def test_a_rival_of_a_decided_record_is_not_of_the_chain():
    """As a file has it that was told of the decision, and has not written it yet."""
    chain = Chain(genesis())
    first = commit(chain.head, "a", 1)
    rival = commit(ChainHead.of(first), "a", 1)
    decided = commit(ChainHead.of(first), "b", 2)
    for record in (first, decided):
        chain.append(record)

    assert list(chain.own([first, rival])) == [first]
    assert list(chain.own([first, decided])) == [first, decided]


TOKENS = 96
COUNTING = replace(genesis(), tokens=TOKENS)


def counting(head: ChainHead, targets: int | None, scale: float = 1.0) -> CommitRecord:
    """A commit whose last stage says how many targets the step has."""
    return commit(head, stages=(stage_commit(head.version, 1, targets=targets),), scale=scale)


def test_a_run_whose_rows_tell_their_targets_counts_them_in_every_step():
    chain = Chain(COUNTING)
    chain.append(counting(chain.head, 96))
    chain.append(counting(chain.head, 3, 32.0))
    chain.append(counting(chain.head, 0, 0.0))

    assert chain.head.version == 3


@pytest.mark.parametrize(
    ("targets", "scale", "why"),
    [
        (None, 1.0, "it counts None targets"),
        (97, 0.9, "97 targets of 96 tokens"),
        (3, 32.1, "it scales by 32.1, over 32"),
        (0, 1e-9, "it scales by 1e-09, over 0"),
    ],
)
def test_targets_and_scale_fit_the_tokens_of_the_run(targets, scale, why):
    with pytest.raises(BrokenRecord, match=why):
        Chain(COUNTING).append(counting(COUNTING.head(), targets, scale))


@pytest.mark.parametrize(("targets", "scale"), [(96, 1.0), (None, 1.5)])
def test_a_run_in_which_every_token_is_a_target_counts_none_and_scales_nothing_up(targets, scale):
    with pytest.raises(BrokenRecord, match=r"it counts 96 targets|it scales by 1\.5, over 1"):
        Chain(genesis()).append(counting(genesis().head(), targets, scale))


def test_only_the_last_stage_says_how_many_targets_there_are():
    two = replace(COUNTING, stages=2)
    stages = tuple(stage_commit(0, 1, stage, targets=5) for stage in range(2))

    with pytest.raises(BrokenRecord, match="a stage below the last has targets"):
        Chain(two).append(commit(two.head(), stages=stages))


@pytest.mark.parametrize("kind", [back, revote])
def test_a_record_that_commits_nothing_counts_no_targets(kind):
    chain = Chain(COUNTING)
    chain.append(counting(chain.head, 96))
    record = kind(chain.head, 1) if kind is back else kind(chain.head)
    said = (replace(record.stages[0], targets=4),)

    with pytest.raises(BrokenRecord, match="it counts"):
        chain.append(sign(replace(record, stages=said), key("a")))
