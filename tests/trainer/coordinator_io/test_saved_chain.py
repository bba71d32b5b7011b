"""The records that go into a checkpoint end with the one that made its version."""

from types import SimpleNamespace

import pytest
from run.chain.harness import RUN, chain_of, commit, genesis, revote

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.node.run.resume import check_records
from p2pswarm.run.chain.chain import Chain
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.record import digest
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.coordinator_io.checkpoints import ChainMark, SavedChain


def saved(*kinds: str) -> tuple[SavedChain, Chain]:
    """A chain of steps ("s") and records of voters ("v")."""
    chain, store = Chain(genesis("ab", "a")), MemoryChain(bytes(8))
    for kind in "".join(kinds):
        record = (revote if kind == "v" else commit)(chain.head)
        chain.append(record)
        store.append(record)
    return SavedChain(chain, store), chain


def manifest_of(head: bytes, step: int) -> SimpleNamespace:
    """What a checkpoint's manifest says of its chain."""
    return SimpleNamespace(run=RUN, head=head, step=step, run_config=RunConfig, origin=None)


@pytest.mark.parametrize("kinds", ["ss", "ssv", "svsvv", "svvsv"])
def test_a_checkpoint_has_the_records_up_to_the_one_that_made_its_version(kinds):
    past, chain = saved(kinds)

    mark = past.mark()

    assert mark == ChainMark(digest(chain.last), chain.last.height + 1)
    assert past.branch().made(past.head.version) == mark.head
    manifest = manifest_of(mark.head, past.head.version)
    said = check_records([past.records(mark)], manifest)
    assert said.startswith(f"{mark.height} records lead from step 0 to step 2")


def test_records_that_end_with_a_change_of_voters_are_not_those_of_a_checkpoint():
    past, chain = saved("ssv")
    whole = past.records(ChainMark(chain.head.digest, chain.head.height))

    with pytest.raises(BadCheckpoint, match="does not lead to step 2"):
        check_records([whole], manifest_of(past.mark().head, 2))


def test_before_the_first_record_there_is_nothing_to_save():
    past, _ = saved("")

    assert past.mark() == ChainMark()
    assert past.records(past.mark()) is None


def test_records_that_are_not_here_any_more_are_not_saved_in_part():
    _, records = chain_of(3)
    chain, store = Chain(genesis()), MemoryChain(bytes(8), records_max=2)
    for record in records:
        chain.append(record)
        store.append(record)

    past = SavedChain(chain, store)

    assert past.records(past.mark()) is None
