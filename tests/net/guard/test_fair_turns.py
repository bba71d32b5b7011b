"""Fair turns: a network waits for one turn of each other, however many of them there are."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.guard.fair_turns import FairTurns

GROUPS = st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.sampled_from("fgh"))


def drained(turns: FairTurns[int]) -> list[int]:
    found = []
    while (item := turns.next()) is not None:
        found.append(item)
    return found


def test_networks_take_turns_and_hosts_within_them():
    turns: FairTurns[int] = FairTurns()
    for item, groups in enumerate(["ax", "ax", "ay", "bz", "bz"]):
        turns.add(item, tuple(groups))

    assert drained(turns) == [0, 3, 2, 4, 1]


def test_who_has_left_has_no_turn():
    turns: FairTurns[int] = FairTurns()
    for item in range(3):
        turns.add(item, ("a",))

    turns.remove(1)
    turns.remove(1)

    assert 1 not in turns
    assert drained(turns) == [0, 2]
    assert turns.next() is None


@given(st.lists(st.one_of(GROUPS, st.none(), st.integers(0, 30))))
def test_each_comes_once_and_the_oldest_of_a_host_first(steps):
    turns: FairTurns[int] = FairTurns()
    waiting: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            turns.add(number, step)
            waiting[number] = step
        elif step is None:
            item = turns.next()
            if not waiting:
                assert item is None
                continue
            assert item is not None
            groups = waiting[item]
            assert item == min(each for each, of in waiting.items() if of == groups)
            del waiting[item]
        else:
            turns.remove(step)
            waiting.pop(step, None)
        assert len(turns) == len(waiting)
        assert all(item in turns for item in waiting)
    assert sorted(drained(turns)) == sorted(waiting)


@given(
    st.lists(GROUPS, max_size=60),
    st.lists(GROUPS, min_size=60, max_size=60),
    st.integers(0, 20),
)
def test_a_newcomer_waits_for_one_turn_of_each_group_beside_its_own(crowd, more, before):
    """A crowd that goes on coming: a host of its own network waits 2 x 4 turns at the most."""
    turns: FairTurns[int] = FairTurns()
    for number, groups in enumerate(crowd):
        turns.add(number, groups)
    for _ in range(before):
        turns.next()
    turns.add(-1, ("a", "c", "honest"))

    served = []
    for number, groups in enumerate(more):
        served.append(turns.next())
        if served[-1] == -1:
            break
        turns.add(1000 + number, groups)

    assert served[-1] == -1
    assert len(served) <= 2 * 3 * 4
