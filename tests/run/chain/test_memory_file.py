import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.chain.harness import RUN, back, chain_of, commit, genesis

from p2pswarm.base.errors import Unusable
from p2pswarm.net.wire.message import encode
from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.chain_file import ChainFile
from p2pswarm.run.chain.memory_file import MemoryChain
from p2pswarm.run.chain.messages import Prepare, Propose

GENESIS = genesis()
MEMORY = b"memory 1"
KINDS = ["prepare", "next", "again", "fetched"]
_, RECORDS = chain_of(6)


def propose(number: int, term: int = 1) -> Propose:
    return Propose(RUN, term, RECORDS[number])


def prepare(term: int) -> Prepare:
    return Prepare(RUN, term, bytes(16))


@st.composite
def histories(draw) -> list:
    """What a voter may say yes to: promises, and records in their order, some of them again."""
    entries, height, term = [], 0, 1
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=12)):
        if kind == "prepare":
            term += 1
            entries.append(prepare(term))
        elif kind == "again" and height:
            entries.append(propose(height - 1, term))
        elif height < len(RECORDS) and kind in ("next", "fetched"):
            entries.append(propose(height, term) if kind == "next" else RECORDS[height])
            height += 1
    return entries


@given(histories(), st.integers(0, 7), st.integers(0, 7))
def test_it_says_what_a_file_with_the_same_entries_says(tmp_path_factory, entries, first, end):
    path = tmp_path_factory.mktemp("chain") / "a.chain"
    file, _ = ChainFile.open(path, GENESIS, MEMORY)
    memory = MemoryChain(MEMORY)
    for entry in entries:
        file.append(entry)
        memory.append(entry)

    assert list(memory.records(first, end)) == list(file.records(first, end))
    file.close()
    memory.close()

    file, from_disk = ChainFile.open(path, GENESIS, b"another1")
    file.close()
    from_memory = memory.restored(GENESIS)
    assert memory.memory == file.memory
    assert memory.warning is None
    assert from_memory.register == from_disk.register
    assert from_memory.learner.chain.head == from_disk.learner.chain.head


def test_the_record_that_took_the_place_of_another_is_given():
    chain, records = chain_of(2)
    rival = commit(ChainHead.of(records[0]), term=2)
    memory = MemoryChain(MEMORY)

    for record in (*records, rival, back(chain.head, 1)):
        memory.append(Propose(RUN, 2, record))

    assert list(memory.records(0, 2)) == [records[0], rival]


def test_what_lies_beyond_a_gap_is_not_given():
    memory = MemoryChain(MEMORY)
    memory.append(propose(0))
    memory.append(propose(2))

    assert list(memory.records(0, 3)) == [RECORDS[0]]
    assert list(memory.records(1, 3)) == []


def test_a_node_may_keep_the_newest_records_alone():
    memory = MemoryChain(MEMORY, records_max=2)
    for number in (0, 1, 2, 1):
        memory.append(propose(number))

    assert list(memory.records(1, 9)) == RECORDS[1:3]
    assert list(memory.records(0, 9)) == []
    memory.append(propose(3))
    assert list(memory.records(2, 9)) == RECORDS[2:4]
    assert list(memory.records(1, 9)) == []
    with pytest.raises(ValueError, match="cannot be read again"):
        memory.restored(GENESIS)


def test_a_node_may_keep_as_many_bytes_of_records_as_it_has_room_for():
    size = len(encode(RECORDS[0]))
    memory = MemoryChain(MEMORY, records_max=9, bytes_max=2 * size)
    for number in (0, 1, 2, 2):
        memory.append(propose(number))

    assert list(memory.copy().records(1, 9)) == RECORDS[1:3]
    assert list(memory.records(0, 9)) == []


def test_entries_that_are_no_chain_are_refused():
    memory = MemoryChain(MEMORY)
    memory.append(RECORDS[0])
    memory.append(commit(ChainHead.of(RECORDS[0]), "x"))

    with pytest.raises(Unusable, match="no single chain"):
        memory.restored(GENESIS)


def test_a_copy_holds_the_same_and_goes_its_own_way():
    memory = MemoryChain(MEMORY)
    memory.append(RECORDS[0])

    other = memory.copy()
    memory.append(RECORDS[1])

    assert other.memory == MEMORY
    assert other.restored(GENESIS).learner.chain.last == RECORDS[0]
    assert list(other.records(0, 2)) == RECORDS[:1]


def test_a_node_whose_file_is_full_is_another_voter_in_each_process():
    secrets = [b"one process" * 3, b"another one" * 3]

    names = [MemoryChain.instead_of(MEMORY, secret).memory for secret in secrets]

    assert [len(name) for name in names] == [len(MEMORY)] * 2
    assert len({MEMORY, *names}) == 3
    assert MemoryChain.instead_of(names[0], secrets[0]).memory not in (MEMORY, *names)
