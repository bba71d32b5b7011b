"""Roads to other servers: who is asked whether it is still there, and which roads are broken."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.peer_health import (
    ASK_AFTER_S,
    AVERAGING_FACTOR,
    AVERAGING_SILENT_S,
    AVERAGINGS,
    BEAT_S,
    BEATS_PER_S,
    FORGOTTEN_S,
    LATE_S,
    SILENT_MAX_S,
    SILENT_S,
    STALE_MAX,
    PeerHealth,
)

ANN, BOB = b"a" * 32, b"b" * 32
QUESTIONS_MAX = 1 + SILENT_MAX_S / ASK_AFTER_S  # each lasts for 15 s at most


class Town:
    """Roads and their clock."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self.roads = PeerHealth(silent_s=silent_s)
        self.now_s = 0.0
        self.asked = {}
        """The questions without an outcome, by peer, oldest first."""

    def opened(self, peer: bytes = ANN) -> None:
        self.roads.opened(peer, self.now_s)

    def pass_by(self, seconds: float) -> tuple[list[bytes], list[bytes]]:
        """Let time pass, deadline by deadline; returns who was asked, and which roads broke."""
        end_s, asked, broken = self.now_s + seconds, [], []
        while (due_s := self.roads.next_deadline_s()) is not None and due_s <= end_s:
            self.now_s = due_s
            self.roads.on_deadline(due_s)
            asked += self.ask()
            broken += self.roads.broken()
        self.now_s = end_s
        return asked, broken

    def ask(self) -> list[bytes]:
        new = list(self.roads.to_ask())
        for question in new:
            self.asked.setdefault(question.peer, []).append(question)
        return [question.peer for question in new]

    def answered(self, peer: bytes = ANN, *, there: bool = True, first: bool = False) -> None:
        """The newest question to a peer has an outcome, or the `first` without one."""
        question = self.asked[peer].pop(0 if first else -1)
        self.roads.answered(question, self.now_s, there=there)


def test_a_stream_that_is_over_soon_costs_no_question():
    town = Town()
    town.opened()
    assert town.pass_by(ASK_AFTER_S / 2) == ([], [])

    town.roads.closed(ANN)

    assert town.roads.next_deadline_s() is None


def test_a_peer_is_asked_each_second_while_a_stream_waits_for_it():
    town = Town()
    town.opened()

    for _ in range(3):
        assert town.pass_by(ASK_AFTER_S) == ([ANN], [])
        town.answered()


def test_one_that_does_not_answer_breaks_the_road():
    town = Town()
    town.opened()
    town.opened(BOB)

    asked, broken = town.pass_by(ASK_AFTER_S + SILENT_S / 2)
    town.answered(BOB)
    _, broken = town.pass_by(SILENT_S / 2)

    assert asked == [ANN, BOB]
    assert town.asked[ANN][1:], "a broken road is asked anew at once, by another dial"
    assert broken == [ANN]
    assert town.roads.is_broken(ANN)
    assert not town.roads.is_broken(BOB)


def test_who_is_watched_is_asked_at_a_slow_beat_though_no_stream_waits():
    town = Town()
    town.roads.watch([ANN], 0.0)

    for _ in range(3):
        assert town.pass_by(BEAT_S) == ([ANN], [])
        town.answered()
    assert town.roads.apart == ()


def test_a_cut_to_one_that_is_watched_is_found_and_stays_found_until_there_is_an_answer():
    town = Town()
    town.roads.watch([ANN, BOB], 0.0)
    town.pass_by(BEAT_S)
    town.answered(BOB)

    town.pass_by(SILENT_S)
    assert town.roads.apart == (ANN,)
    for _ in range(int(2 * FORGOTTEN_S)):
        town.answered(there=False)
        town.pass_by(ASK_AFTER_S)
        for peer in [peer for peer in town.asked if peer == BOB and town.asked[peer]]:
            town.answered(peer)
    assert town.roads.apart == (ANN,), "nobody has seen it whole"

    town.answered()
    assert town.roads.apart == ()


def test_a_stream_makes_questions_to_one_that_is_watched_more_frequent_while_it_lasts():
    town = Town()
    town.roads.watch([ANN], 0.0)
    town.opened()

    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])
    town.answered()
    town.roads.closed(ANN)
    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])
    town.answered()
    assert town.pass_by(ASK_AFTER_S) == ([], [])
    assert town.pass_by(BEAT_S - ASK_AFTER_S) == ([ANN], [])


def test_who_is_watched_no_more_is_asked_no_more():
    town = Town()
    town.roads.watch([ANN, BOB], 0.0)
    town.roads.watch([BOB], 0.0)

    asked, _ = town.pass_by(BEAT_S)

    assert set(asked) == {BOB}
    town.roads.begun(town.now_s)
    town.answered(BOB)
    assert town.roads.next_deadline_s() is None, "the next session watches whom it knows"


def test_a_large_stage_asks_no_more_each_second_than_a_small_one():
    town = Town()
    peers = [bytes([number]) * 32 for number in range(127)]
    town.roads.watch(peers, 0.0)
    asked = []
    for _ in range(110):
        new, _ = town.pass_by(1.0)
        asked.append(len(new))
        for peer in new:
            town.answered(peer)

    assert max(asked) <= BEATS_PER_S + 1
    assert sum(asked) >= 2 * len(peers)


MATES = [bytes([number]) * 32 for number in range(50)]  # each is asked every 20 s
TWENTY_S = 20.0


def questions_to_ann(town: Town, seconds: int, asked_at: Callable[[int], bool]) -> list[int]:
    """When Ann is asked by us, if she asks us at these seconds."""
    times = []
    for second in range(seconds):
        new, _ = town.pass_by(1.0)
        for peer in new:
            if peer == MATES[-1]:
                times.append(second)
            town.answered(peer)
        if asked_at(second):
            town.roads.asked(MATES[-1], town.now_s)
    return times


def test_in_a_large_stage_who_is_asked_each_turn_need_not_ask_itself():
    town = Town()
    town.roads.watch(MATES, 0.0)

    assert questions_to_ann(town, 200, lambda second: second % TWENTY_S == 0) == []


def test_who_is_asked_no_more_asks_itself_soon():
    town = Town()
    town.roads.watch(MATES, 0.0)

    times = questions_to_ann(town, 200, lambda second: second in (0, 20, 40))

    assert times[0] <= 40 + 1.5 * TWENTY_S + 1
    assert len(times) >= 6, "then at its own beat"


def test_who_is_asked_again_and_again_asks_itself_too_for_its_answers_may_not_arrive():
    town = Town()
    town.roads.watch(MATES, 0.0)

    times = questions_to_ann(town, 120, lambda second: second > 30 and second % 3 == 0)

    assert len(times) >= 4


def test_in_a_small_stage_both_ask():
    town = Town()
    town.roads.watch([ANN, BOB], 0.0)

    asked, _ = town.pass_by(BEAT_S / 2)
    town.roads.asked(ANN, town.now_s)
    more, _ = town.pass_by(BEAT_S / 2)

    assert sorted([*asked, *more]) == [ANN, BOB]


def test_who_asks_while_a_stream_is_in_use_or_is_not_known_changes_nothing():
    town = Town()
    town.roads.watch(MATES, 0.0)
    town.roads.asked(b"nobody" * 6, 0.0)
    town.opened(MATES[0])
    town.roads.asked(MATES[0], 0.0)

    assert MATES[0] in town.pass_by(ASK_AFTER_S)[0]


def test_streams_that_end_soon_wake_nobody_for_each():
    town, woken = Town(), 0
    for _ in range(200):
        town.opened()
        town.opened(BOB)
        town.roads.closed(ANN)
        end_s = town.now_s + 0.1
        while (due_s := town.roads.next_deadline_s()) is not None and due_s <= end_s:
            town.roads.on_deadline(due_s)
            woken += 1
        town.now_s = end_s
        town.roads.closed(BOB)

    assert list(town.roads.to_ask()) == []
    assert woken <= 20 / ASK_AFTER_S
    assert town.roads.next_deadline_s() is None


def test_a_broken_road_is_whole_again_with_the_answer():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S)
    town.roads.closed(ANN)
    assert town.roads.is_broken(ANN)

    town.answered()

    assert not town.roads.is_broken(ANN)
    assert town.roads.next_deadline_s() is None


def test_a_broken_road_whose_link_ended_stays_so_until_a_question_that_dials_is_answered():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S)
    town.roads.closed(ANN)

    town.answered(there=False)

    assert town.roads.is_broken(ANN)
    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])
    assert town.pass_by(SILENT_MAX_S) == ([], [])
    town.answered()
    assert not town.roads.is_broken(ANN)


def test_a_question_on_a_broken_road_is_given_up_soon_and_asked_anew():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S)

    whole, broken = town.asked[ANN]

    assert (whole.within_s, broken.within_s) == (SILENT_MAX_S, SILENT_S)
    town.pass_by(SILENT_S)
    town.answered(there=False)
    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])


def test_an_answer_to_the_question_that_broke_the_road_makes_it_whole_too():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S + 1.0)

    town.answered(first=True)

    assert not town.roads.is_broken(ANN)
    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])


def test_the_failure_of_a_former_question_says_nothing_about_the_newest():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S + 1.0)
    town.answered(first=True)
    town.pass_by(ASK_AFTER_S)
    assert len(town.asked[ANN]) == 2

    town.answered(there=False, first=True)

    assert town.pass_by(ASK_AFTER_S) == ([], []), "its answer is due, and is waited for"


def test_a_peer_that_cannot_be_dialled_is_behind_a_broken_road_at_once():
    town = Town()
    town.opened()
    town.opened()

    town.roads.unreachable(ANN, town.now_s)
    town.roads.unreachable(ANN, town.now_s)

    assert town.roads.is_broken(ANN)
    assert list(town.roads.broken()) == [ANN], "another stream that is in use ends as well"
    assert town.ask() == [ANN]


def averaging_town(*took_s: float) -> Town:
    town = Town(AVERAGING_SILENT_S)
    for seconds in took_s:
        town.roads.averaged([ANN], seconds)
    town.opened()
    return town


@pytest.mark.parametrize(
    ("took_s", "silent_s"),
    [
        ((), AVERAGING_SILENT_S),
        ((0.3,), SILENT_S),
        ((0.3, 1.25, 0.3), 1.25 * AVERAGING_FACTOR),
        ((60.0,), AVERAGING_SILENT_S),
        ((60.0, *[0.3] * AVERAGINGS), SILENT_S),
    ],
)
def test_an_answer_may_wait_behind_the_bytes_of_an_averaging_as_long_as_the_last_ones_took(
    took_s, silent_s
):
    town = averaging_town(*took_s)

    assert town.pass_by(ASK_AFTER_S + silent_s - 0.01) == ([ANN], [])
    assert town.pass_by(0.02) == ([ANN], [ANN])


def test_how_quickly_some_average_says_nothing_about_one_that_has_not_yet():
    town = averaging_town(0.3)
    town.roads.closed(ANN)
    town.opened(BOB)

    assert town.pass_by(ASK_AFTER_S + AVERAGING_SILENT_S - 0.01) == ([BOB], [])


def test_a_peer_that_is_not_reached_for_a_minute_is_forgotten():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S)
    town.roads.closed(ANN)
    asked = 0
    while town.roads.is_broken(ANN):
        town.answered(there=False)
        asked += len(town.pass_by(ASK_AFTER_S)[0])

    assert asked == FORGOTTEN_S / ASK_AFTER_S
    assert town.roads.next_deadline_s() is None


def test_streams_that_wait_on_while_the_link_is_made_anew_are_watched_again():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S)

    town.answered(there=False)

    assert town.pass_by(ASK_AFTER_S) == ([ANN], [])


def test_one_whose_answer_came_late_is_given_twice_that_time():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S + 1.0)
    town.answered(first=True)  # after 4 s

    assert town.pass_by(ASK_AFTER_S + 7.9) == ([ANN], [])
    assert town.pass_by(0.1) == ([ANN], [ANN])


def test_a_quick_answer_ends_the_patience():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S + 1.0)
    town.answered(first=True)
    town.pass_by(ASK_AFTER_S)
    town.answered()

    assert town.pass_by(ASK_AFTER_S + SILENT_S) == ([ANN, ANN], [ANN])


def test_a_process_that_was_stopped_itself_waits_anew_for_the_answer():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S)
    town.now_s += SILENT_S + LATE_S + 60.0

    town.roads.on_deadline(town.now_s)

    assert list(town.roads.broken()) == []
    assert town.pass_by(SILENT_S) == ([ANN], [ANN])


def test_another_stream_to_a_peer_does_not_put_the_question_off():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S / 2)

    town.opened()

    assert town.pass_by(ASK_AFTER_S / 2) == ([ANN], [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "close", "answer", "lose", "wait", "no dial"]), st.booleans()
        ),
        max_size=60,
    )
)
def test_whatever_happens_few_questions_are_open_and_a_broken_road_is_asked_soon(ops):
    town, streams = Town(), {ANN: 0, BOB: 0}
    for what, first in ops:
        peer = ANN if first else BOB
        if what == "open":
            town.opened(peer)
            streams[peer] += 1
        elif what == "close" and streams[peer]:
            town.roads.closed(peer)
            streams[peer] -= 1
        elif what == "no dial" and streams[peer]:
            town.roads.unreachable(peer, town.now_s)
            town.ask()
        elif what in ("answer", "lose") and town.asked.get(peer):
            town.answered(peer, there=what == "answer", first=first)
        elif what == "wait":
            town.pass_by(1.0)
            for one, questions in town.asked.items():
                while questions and town.now_s >= questions[0].asked_s + questions[0].within_s:
                    town.answered(one, there=False, first=True)
        for questions in town.asked.values():
            since = [question.asked_s for question in questions]
            assert len(since) <= QUESTIONS_MAX
            assert since == sorted(since)
        due_s = town.roads.next_deadline_s()
        assert due_s is None or due_s <= town.now_s + SILENT_MAX_S
        soon = due_s is not None and due_s <= town.now_s + ASK_AFTER_S
        assert all(
            not town.roads.is_broken(one) or town.asked.get(one) or soon for one in (ANN, BOB)
        )


def test_a_new_session_asks_broken_roads_again_and_begins_the_others_anew():
    town = Town()
    for peer in (b"cut", b"asked", b"over"):
        town.opened(peer)
    town.pass_by(ASK_AFTER_S)
    town.answered(b"asked")
    town.answered(b"over")
    town.roads.closed(b"over")
    town.now_s = ASK_AFTER_S + SILENT_S
    town.roads.on_deadline(town.now_s)
    assert list(town.roads.broken()) == [b"cut"]
    town.ask()
    town.answered(b"asked")
    town.roads.closed(b"cut")

    town.now_s = 60.0
    town.roads.begun(town.now_s)

    assert town.ask() == [b"cut"]
    assert town.roads.is_broken(b"cut")
    assert town.roads.next_deadline_s() == 60.0 + ASK_AFTER_S
    town.answered(b"cut")
    assert not town.roads.is_broken(b"cut")


@pytest.mark.parametrize("begun_s", [0.5, SILENT_S - 0.5])
def test_an_answer_that_is_due_when_a_new_session_begins_is_due_all_the_same(begun_s):
    """Its peer has so long at least as a lost packet takes: what it said was for no session."""
    town = Town(silent_s=AVERAGING_SILENT_S)
    town.roads.watch([ANN], 0.0)
    assert town.pass_by(BEAT_S) == ([ANN], [])
    asked_s = town.now_s

    town.now_s = begun_s = asked_s + begun_s
    town.roads.begun(begun_s)
    town.roads.watch([ANN], begun_s)
    assert town.ask() == [ANN]

    due_s = max(asked_s + AVERAGING_SILENT_S, begun_s + SILENT_S)
    town.pass_by(due_s - begun_s - 0.1)
    assert not town.roads.is_broken(ANN)
    town.pass_by(0.1)
    assert town.roads.is_broken(ANN)


def test_a_road_that_is_used_again_and_again_costs_no_memory():
    roads = PeerHealth()
    for number in range(10_000):
        roads.opened(ANN, number * 1e-3)
        roads.closed(ANN)

    assert len(roads._dues) <= 2 * STALE_MAX + 1
    assert roads.next_deadline_s() is None


def test_many_roads_are_asked_in_the_order_in_which_they_are_due():
    roads = PeerHealth()
    peers = [bytes([number]) * 32 for number in range(50)]
    for number, peer in enumerate(peers):
        roads.opened(peer, 0.01 * number)

    asked = []
    now_s = 0.0
    while len(asked) < len(peers):
        due_s = roads.next_deadline_s()
        assert due_s is not None
        assert due_s >= now_s, "what is over wakes nobody"
        now_s = due_s
        roads.on_deadline(now_s)
        asked += [question.peer for question in roads.to_ask()]

    assert asked == peers
