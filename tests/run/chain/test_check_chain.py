"""The independent script says of good and bad chain files what the package says of them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from run.chain.harness import (
    RUN,
    back,
    chain_of,
    commit,
    genesis,
    key,
    revote,
    stage_commit,
    voter,
)

from p2pswarm.run.chain.chain import Chain, ChainHead
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.run.chain.messages import Prepare, Propose
from p2pswarm.run.chain.record import CommitRecord, digest
from p2pswarm.settings.codec_ladder import CodecChoices

SCRIPT = Path(__file__).parents[3] / "bench" / "check_chain.py"
_, RECORDS = chain_of(3)
CHOICES = (frozenset({b"\x07\x0a"}),)
HEAD = ChainHead.of(RECORDS[-1])


def check(
    path: Path, *entries, tail: bytes = b"", run: bytes = RUN, delay: int = 0, numbers: tuple = ()
) -> tuple[dict, str, int]:
    file = path / "a.chain"
    file.write_bytes(log_header(run, bytes(8)) + b"".join(map(log_entry, entries)) + tail)
    given = [str(number) for number in ((delay, *numbers) if delay or numbers else ())]
    command = [sys.executable, "-I", SCRIPT, file, *given]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout), done.stderr, done.returncode


def test_it_needs_nothing_of_the_package():
    assert "import p2pswarm" not in SCRIPT.read_text()
    assert "from p2pswarm" not in SCRIPT.read_text()


def test_a_good_file_of_a_voter(tmp_path):
    rival = commit(ChainHead.of(RECORDS[1]), "b")
    proposals = [Propose(RUN, 1, record) for record in RECORDS]
    entries = [Prepare(RUN, 1, bytes(16)), *proposals[:2], Propose(RUN, 1, rival), proposals[2]]

    result, _, code = check(tmp_path, *entries, tail=b"torn")

    assert result == {"ok": True, "steps": 3, "head": digest(RECORDS[-1]).hex()}
    assert code == 0


@pytest.mark.parametrize("delay", [0, 1])
def test_it_tells_from_which_step_on_a_boundary_has_other_codecs(tmp_path, delay: int):
    chain = Chain(replace(genesis(), codecs=CodecChoices(CHOICES, 2 + delay)))
    choices = [b"", b"\x07\x0a", b"\x07\x0a", b""]
    records = []
    for codes in choices:
        stages = (stage_commit(chain.head.version, 1, codecs=codes),)
        records.append(commit(chain.head, stages=stages))
        chain.append(records[-1])

    result, said, code = check(tmp_path, *records, delay=delay)

    assert (code, result["steps"], result["head"]) == (0, 4, digest(records[-1]).hex())
    held = [step for step in range(1, 6 + delay) if chain.codecs(step) != chain.codecs(step - 1)]
    assert held == [3 + delay, 5 + delay]
    assert said.splitlines() == [
        f"step {3 + delay}: codecs above stage 0: 070a",
        f"step {5 + delay}: codecs above stage 0: as the manifest says",
    ]


def test_steps_that_were_taken_back_do_not_count(tmp_path):
    backward = back(HEAD, 1)
    again = commit(ChainHead.of(backward))

    result, _, _ = check(tmp_path, *RECORDS, backward, again)

    assert result == {"ok": True, "steps": 2, "head": digest(again).hex()}


def test_a_chain_that_goes_back_to_its_newest_version_goes_on_from_it(tmp_path):
    backward = back(HEAD, 3)
    again = commit(ChainHead.of(backward))

    result, _, _ = check(tmp_path, *RECORDS, backward, again)

    assert result == {"ok": True, "steps": 4, "head": digest(again).hex()}


def test_records_that_only_change_the_voters_are_no_steps(tmp_path):
    others = (voter("a"), voter("b"), voter("d"))
    first = revote(HEAD, voters=others)
    step = commit(ChainHead.of(first))
    second = revote(ChainHead.of(step), "b", 2)

    result, said, _ = check(tmp_path, *RECORDS, first, step, second)

    assert result == {"ok": True, "steps": 4, "head": digest(second).hex()}
    assert "2 records only change the voters" in said


def test_a_run_that_goes_on_from_a_checkpoint_begins_with_its_step(tmp_path):
    origin = genesis().after(5, b"m" * 32)
    chain, records = chain_of(3, origin)
    backward = back(chain.head, 6)

    result, said, _ = check(tmp_path, *records, backward)

    assert result == {"ok": True, "steps": 6, "head": digest(backward).hex()}
    assert "begins with step 5 of a checkpoint" in said


def test_a_run_cannot_go_back_to_before_the_checkpoint_that_it_began_with(tmp_path):
    chain, records = chain_of(3, genesis().after(5, b"m" * 32))

    assert "it goes back to 4" in check(tmp_path, *records, back(chain.head, 4))[1]


def test_a_microbatch_that_all_stages_set_aside_is_named_and_fine(tmp_path):
    aside = commit(HEAD, stages=(stage_commit(3, 1, holders=b"\0\xff"),))

    result, said, _ = check(tmp_path, *RECORDS, aside)

    assert result == {"ok": True, "steps": 4, "head": digest(aside).hex()}
    assert "not finite: [7]" in said


def test_what_was_set_aside_in_a_step_that_was_taken_back_is_due_again(tmp_path):
    aside = commit(HEAD, stages=(stage_commit(3, 1, holders=b"\0\xff"),))
    backward = back(ChainHead.of(aside), 3)
    again = commit(ChainHead.of(backward))

    result, said, _ = check(tmp_path, *RECORDS, aside, backward, again)

    assert result["ok"]
    assert said == ""


def test_a_microbatch_cannot_be_set_aside_in_one_stage_only(tmp_path):
    origin = ChainHead(0, bytes(32), 0, 0, HEAD.voters, HEAD.trainers, 0)
    stages = stage_commit(0, 1), stage_commit(0, 1, 1, holders=b"\0\xff")

    assert "in one stage only" in check(tmp_path, commit(origin, stages=stages))[1]


def test_an_empty_file_is_fine(tmp_path):
    assert check(tmp_path)[0] == {"ok": True, "steps": 0, "head": ""}


BAD = {
    "a wrong signature": [*RECORDS[:2], replace(RECORDS[2], loss=0.1)],
    "is missing": [RECORDS[0], RECORDS[2]],
    "a fork": [*RECORDS, commit(ChainHead.of(RECORDS[0]), "b")],
    "it is not step 3": [*RECORDS, commit(HEAD, step=4)],
    "count every microbatch once": [
        *RECORDS,
        commit(HEAD, stages=(stage_commit(3, 1, holders=b"\0"),)),
    ],
    "counted by nobody": [*RECORDS, commit(HEAD, stages=(stage_commit(3, 1, holders=b"\0\7"),))],
    "does not have every microbatch once": [*RECORDS, commit(HEAD, first=5)],
    "voters_before is wrong": [*RECORDS, commit(HEAD, voters_before=(voter("a"),))],
    "its voters are wrong": [*RECORDS, commit(HEAD, voters=(voter("a"), voter("b")))],
    "term is wrong": [*RECORDS, commit(HEAD, term=0)],
    "coordinator": [*RECORDS, commit(HEAD, "z", trainers=(key("z").peer_id.raw,))],
    "is no trainer": [commit(genesis().head(), "z")],
    "and not only them": [*RECORDS, revote(HEAD, stages=(stage_commit(3, 1),))],
    "not of version 3": [*RECORDS, revote(HEAD, step=2)],
    "goes back to 4": [*RECORDS, back(HEAD, 4)],
    "version 2 was another one": [*RECORDS, back(HEAD, 2, stages=back(HEAD, 1).stages)],
    "names no checkpoint": [commit(replace(genesis().head(), version=4))],
    "stages is wrong": [*RECORDS, commit(HEAD, stages=(stage_commit(3, 1), stage_commit(3, 1, 1)))],
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_named(tmp_path, what):
    result, said, code = check(tmp_path, *BAD[what])

    assert result == {"ok": False, "steps": 0, "head": ""}
    assert what in said
    assert code == 1


def test_records_of_another_run_are_refused(tmp_path):
    assert "another run" in check(tmp_path, *RECORDS, run=b"x" * 16)[1]


def test_damage_is_refused(tmp_path):
    tail = b"damage" + log_entry(Propose(RUN, 1, commit(genesis().head())))

    assert "is damaged" in check(tmp_path, *RECORDS, tail=tail)[1]


TOKENS, CLIP = 96, 1.0


def counting(head: ChainHead, targets: int | None, scale: float, **changes) -> CommitRecord:
    """A commit of a run whose rows tell their targets; its gradient has a norm of 1.5."""
    stages = (stage_commit(head.version, 1, targets=targets, **changes),)
    return commit(head, stages=stages, scale=scale)


def scaled(targets: int) -> float:
    return TOKENS / targets * (CLIP / (1.5 + 1e-6)) if targets else 0.0


def test_it_computes_each_scale_again_from_targets_and_norm(tmp_path):
    chain = Chain(replace(genesis(), tokens=TOKENS))
    records = []
    for targets in (96, 7, 0, 31):
        records.append(counting(chain.head, targets, scaled(targets)))
        chain.append(records[-1])

    result, said, code = check(tmp_path, *records, numbers=(TOKENS, CLIP))

    assert (code, result["steps"]) == (0, 4)
    assert said == "134 targets in 4 steps\n"


@pytest.mark.parametrize(
    ("targets", "scale", "said"),
    [
        (7, 1.0, "it scales by 1.0, and not by"),
        (97, scaled(97), "97 targets of 96 tokens"),
        (None, 1.0, "it scales by 1.0, and not by"),
        (0, 0.5, "it scales by 0.5, and not by 0.0"),
    ],
)
def test_it_refuses_a_scale_that_its_targets_do_not_give(tmp_path, targets, scale, said):
    record = counting(genesis().head(), targets, scale)

    _, error, code = check(tmp_path, record, numbers=(TOKENS, CLIP))

    assert code == 1
    assert said in error


def test_it_refuses_a_chain_that_counts_targets_in_some_steps_only(tmp_path):
    first = counting(genesis().head(), 7, 1.0)
    second = commit(ChainHead.of(first))

    _, error, code = check(tmp_path, first, second)

    assert (code, "some steps count their targets" in error) == (1, True)
