import contextlib
import hashlib
import os
import stat
from pathlib import Path

import pytest
from run.chain.harness import RUN, chain_of, commit, genesis

from p2pswarm.base.errors import Unusable
from p2pswarm.run.chain.chain import ChainHead, Genesis
from p2pswarm.run.chain.chain_file import ChainFile
from p2pswarm.run.chain.chain_log import HEADER_BYTES, LogReader, log_entry
from p2pswarm.run.chain.messages import Heartbeat, Prepare, Propose

MEMORY = b"memory 1"
GENESIS = genesis()
_, RECORDS = chain_of(4)


def propose(number: int, term: int = 1) -> Propose:
    return Propose(RUN, term, RECORDS[number])


def prepare(term: int) -> Prepare:
    return Prepare(RUN, term, bytes(16))


def filled(path: Path, *entries) -> Path:
    file, _ = ChainFile.open(path, GENESIS, MEMORY)
    for entry in entries:
        file.append(entry)
    file.close()
    return path


def opened(path: Path, origin: Genesis = GENESIS):
    file, restored = ChainFile.open(path, origin, b"memory 2")
    file.close()
    return file, restored


def reading(path: Path) -> contextlib.closing[ChainFile]:
    return contextlib.closing(ChainFile.open(path, GENESIS, MEMORY)[0])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "a.chain"


def test_a_new_file_has_the_memory_that_it_was_given(path):
    filled(path)

    file, restored = opened(path)

    assert file.memory == MEMORY
    assert file.warning is None
    assert restored.register.accepted is None


def test_the_register_and_the_chain_come_back(path):
    filled(path, prepare(1), propose(0), propose(1), prepare(7))

    _, restored = opened(path)

    assert restored.register.promised == 7
    assert (restored.register.accepted_term, restored.register.accepted) == (1, RECORDS[1])
    assert restored.learner.chain.last == RECORDS[0]
    assert restored.learner.actions() == []


def test_records_are_read_again_by_their_height(path):
    filled(path, propose(0), propose(3), *RECORDS[:3])

    with reading(path) as file:
        assert list(file.records(1, 3)) == RECORDS[1:3]
        assert list(file.records(0, 99)) == RECORDS
        assert list(file.records(9, 99)) == []
    assert opened(path)[1].learner.chain.head.height == 3


def test_records_end_at_a_gap(path):
    filled(path, propose(0), propose(3))

    with reading(path) as file:
        assert list(file.records(0, 4)) == RECORDS[:1]


def test_a_record_that_was_replaced_is_not_read(path):
    rival = commit(ChainHead.of(RECORDS[0]), "b", 2)
    filled(path, propose(0), propose(1), Propose(RUN, 2, rival))

    with reading(path) as file:
        assert list(file.records(0, 2)) == [RECORDS[0], rival]


def test_a_record_far_ahead_takes_no_memory(path):
    far = commit(GENESIS.head(), height=2**40)

    filled(path, Propose(RUN, 1, far))

    with reading(path) as file:
        assert list(file.records(0, 2**41)) == []


@pytest.mark.parametrize("kept", range(0, 300, 23))
def test_a_torn_end_is_cut_off_with_a_warning(path, kept):
    filled(path, prepare(1), propose(0))
    whole = path.read_bytes()
    filled(path, propose(1))
    path.write_bytes(path.read_bytes()[: len(whole) + kept])

    file, restored = opened(path)

    assert restored.register.accepted == RECORDS[0]
    assert path.read_bytes() == whole
    assert (file.warning is None) == (kept == 0)
    assert kept == 0 or "cut off" in file.warning


def test_zeros_at_the_end_are_a_torn_entry(path):
    filled(path, propose(0))
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(4096))

    file, restored = opened(path)

    assert restored.register.accepted == RECORDS[0]
    assert "4096 bytes" in file.warning
    assert path.read_bytes() == whole


def test_after_a_torn_end_the_file_goes_on(path):
    filled(path, propose(0))
    path.write_bytes(path.read_bytes() + b"torn")

    filled(path, propose(1))

    assert opened(path)[1].register.accepted == RECORDS[1]


@pytest.mark.parametrize("offset", [0, 2, 3, 5, 11, 12, 40, 90])
def test_damage_before_the_end_is_named_with_a_remedy(path, offset):
    filled(path, prepare(1), propose(0), propose(1))
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + offset] ^= 0x55
    path.write_bytes(data)

    with pytest.raises(Unusable, match=f"damaged at byte {HEADER_BYTES}|damaged at byte") as error:
        opened(path)

    assert "move it away" in str(error.value)
    assert path.read_bytes() == data


def test_rubbish_longer_than_an_entry_is_damage(path):
    filled(path, propose(0))
    path.write_bytes(path.read_bytes() + b"x" * 200_000)

    with pytest.raises(Unusable, match="is damaged"):
        opened(path)


@pytest.mark.parametrize("entry", [log_entry(Heartbeat(RUN, 1, 0, bytes(32)))])
def test_an_entry_that_no_voter_writes_is_damage(path, entry):
    filled(path, propose(0))
    path.write_bytes(path.read_bytes() + entry)

    with pytest.raises(Unusable, match="is damaged"):
        opened(path)


def test_an_entry_that_is_whole_but_no_message_is_damage():
    length, body = (3).to_bytes(4), b"\xc1\xc1\xc1"
    check = hashlib.sha256(length + body).digest()[:8]

    with pytest.raises(Unusable, match="is damaged"):
        list(LogReader("f").feed(length + check + body))


def test_entries_come_whole_from_any_pieces():
    data = b"".join(log_entry(propose(number)) for number in range(3))
    reader = LogReader("f")

    entries = [entry for at in range(len(data)) for entry in reader.feed(data[at : at + 1])]

    assert [entry.message for entry in entries] == [propose(number) for number in range(3)]
    assert reader.finish() == 0


def test_records_that_are_not_one_chain_are_refused(path):
    filled(path, RECORDS[0], commit(ChainHead.of(RECORDS[0]), step=5, first=10))

    with pytest.raises(Unusable, match="holds no single chain"):
        opened(path)


def test_a_file_of_another_run_is_refused_and_untouched(path):
    filled(path, propose(0))
    data = path.read_bytes()
    other = Genesis(b"x" * 16, 1, 2, GENESIS.trainers, GENESIS.voters)

    with pytest.raises(Unusable, match="of another run: name another file"):
        opened(path, other)

    assert path.read_bytes() == data


def test_a_file_of_another_kind_is_refused_and_untouched(path):
    path.parent.mkdir()
    path.write_bytes(b"my diary")

    with pytest.raises(Unusable, match="is no chain file"):
        opened(path)

    assert path.read_bytes() == b"my diary"


@pytest.mark.parametrize("kept", [0, 5, 20, HEADER_BYTES - 1])
def test_a_file_that_died_at_its_birth_is_begun_again(path, kept):
    filled(path)
    path.write_bytes(path.read_bytes()[:kept])

    file, _ = opened(path)

    assert file.memory == b"memory 2"
    assert opened(path)[0].memory == b"memory 2"


def test_a_file_that_is_in_use_is_refused(path):
    file, _ = ChainFile.open(path, GENESIS, MEMORY)

    with pytest.raises(Unusable, match="in use by another node"):
        ChainFile.open(path, GENESIS, MEMORY)

    file.close()


def test_what_a_voter_promised_is_its_owners_alone(path):
    before = os.umask(0)
    try:
        opened(path)
    finally:
        os.umask(before)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_that_cannot_be_a_file_is_refused(tmp_path):
    with pytest.raises(Unusable, match=r"cannot be used: .*name another file"):
        opened(tmp_path)


def test_a_full_disk_is_an_error_and_the_file_takes_nothing_more(path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    file, _ = ChainFile.open(path, GENESIS, MEMORY)
    kept = file._file
    file._file = full.open("wb", buffering=0)

    with pytest.raises(Unusable, match=r"No space left.*free some space"):
        file.append(prepare(1))
    file._file.close()
    file._file = kept
    with pytest.raises(Unusable, match="an earlier entry could not be written"):
        file.append(prepare(2))

    file.close()
    assert path.stat().st_size == HEADER_BYTES
