"""Connections to a page: half-open ones keep nobody out."""

from p2pswarm.web.connection_slots import SLOTS, SPEAKS_WITHIN_S, ConnectionSlots


def test_a_thousand_half_open_ones_cost_64_slots_and_keep_nobody_out():
    slots = ConnectionSlots()

    closed = [each for number in range(1_000) for each in slots.on_open(number, 0.0)]

    assert slots.count == SLOTS
    assert closed == list(range(1_000 - SLOTS))
    assert slots.on_open("owner", 0.1) == [1_000 - SLOTS]
    slots.on_pass("owner")
    assert "owner" not in [
        each for number in range(1_000, 2_000) for each in slots.on_open(number, 1.0)
    ]


def test_one_that_says_nothing_is_closed():
    slots = ConnectionSlots()
    slots.on_open("a", 0.0)
    slots.on_open("b", 1.0)
    slots.on_open("c", 0.0)
    slots.on_pass("c")

    assert slots.late(SPEAKS_WITHIN_S) == ["a"]
    assert slots.late(SPEAKS_WITHIN_S) == []


def test_where_all_are_known_a_newcomer_is_closed():
    slots = ConnectionSlots()
    for number in range(SLOTS):
        slots.on_open(number, 0.0)
        slots.on_pass(number)

    assert slots.on_open("late", 1.0) == ["late"]
    slots.on_close(0)
    assert slots.on_open("later", 1.0) == []
