"""What is remembered of the number of bulk connections."""

from p2pswarm.net.bulk.count_memory import REMEMBERED_MAX, CountMemory


def test_what_is_written_is_found_again_for_the_same_peer_and_kind():
    memory = CountMemory()
    memory.best("peer", 0).count = 8

    assert memory.best("peer", 0).count == 8
    assert memory.best("peer", 2).count == 0
    assert memory.best("other", 0).count == 0


def test_few_are_remembered_and_those_the_latest_used():
    memory = CountMemory()
    memory.best("kept", 0).count = 4
    for number in range(3 * REMEMBERED_MAX):
        memory.best(number, 0).count = 2
        memory.best("kept", 0)

    assert memory.best("kept", 0).count == 4
    assert memory.best(1, 0).count == 0
    assert len(memory._best) <= REMEMBERED_MAX
