"""Where a coordinator begins: what the newest step's record says, whoever votes since then."""

from dataclasses import replace

import pytest
from run.chain.harness import back, chain_of, commit, revote, state_of, voter

from p2pswarm.run.chain.record import QUARANTINED
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, report_of_inherited

TERM = 7


def start_after(chain) -> CoordinatorStart:
    return CoordinatorStart.after(TERM, chain.head, chain.last, chain.era)


@pytest.mark.parametrize("went_back", [False, True])
def test_a_change_of_voters_hides_no_step_and_no_way_back(went_back):
    chain, _ = chain_of(3)
    if went_back:
        chain.append(back(chain.head, 2))
    before = start_after(chain)

    for _ in range(2):
        chain.append(revote(chain.head, voters=(voter("a"), voter("b"), voter("d"))))

    assert start_after(chain) == before
    assert (before.last is None, before.loads) == (went_back, went_back)


def test_after_a_change_of_voters_the_commit_below_it_applies_to_what_members_hold():
    chain, records = chain_of(3)
    chain.append(revote(chain.head))

    last = start_after(chain).last

    assert last is not None
    assert (last.step, last.gradients) == (2, {0: records[-1].stages[0].gradient})
    assert last.states == {0: state_of(2)}
    chain.append(commit(chain.head))
    assert start_after(chain).last.step == 3


def test_who_anchors_a_step_of_another_reports_what_its_record_says():
    _, (*_, record) = chain_of(3)
    holders = bytes([QUARANTINED]) + record.stages[0].holders[1:]
    stages = tuple(replace(stage, holders=holders) for stage in record.stages)

    done = report_of_inherited(replace(record, stages=stages), None)

    assert done is not None
    assert (done.step, done.microbatches) == (record.step, record.count)
    assert (done.learning_rate, done.loss) == (record.learning_rate, record.loss)
    assert done.quarantined == (record.first,)


def test_what_a_leader_proposed_last_in_its_former_life_it_has_reported_there():
    chain, (*_, before, record) = chain_of(3)

    assert report_of_inherited(record, record) is None
    assert report_of_inherited(record, before) is not None
    assert report_of_inherited(revote(chain.head), None) is None
    assert report_of_inherited(back(chain.head, 2), None) is None
