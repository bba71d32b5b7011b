"""Roads to other servers: who is asked whether it is still there, and which roads are broken."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.swarm.roads import ASK_AFTER_S, FORGOTTEN_S, LATE_S, SILENT_MAX_S, SILENT_S, Roads

ANN, BOB = b"a" * 32, b"b" * 32


class Town:
    """Roads and their clock."""

    def __init__(self) -> None:
        self.roads = Roads()
        self.now_s = 0.0

    def opened(self, peer: bytes = ANN) -> None:
        self.roads.opened(peer, self.now_s)

    def pass_by(self, seconds: float) -> tuple[list[bytes], list[bytes]]:
        """Let time pass, deadline by deadline; returns who was asked, and which roads broke."""
        end_s, asked, broken = self.now_s + seconds, [], []
        while (due_s := self.roads.next_deadline_s()) is not None and due_s <= end_s:
            self.now_s = due_s
            self.roads.on_deadline(due_s)
            asked += self.roads.to_ask()
            broken += self.roads.broken()
        self.now_s = end_s
        return asked, broken

    def answered(self, peer: bytes = ANN, *, there: bool = True) -> None:
        self.roads.answered(peer, self.now_s, there=there)


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
    assert broken == [ANN]
    assert town.roads.is_broken(ANN)
    assert not town.roads.is_broken(BOB)


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
    town.answered()  # after 4 s

    assert town.pass_by(ASK_AFTER_S + 7.9) == ([ANN], [])
    assert town.pass_by(0.1) == ([], [ANN])


def test_a_quick_answer_ends_the_patience():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S + SILENT_S + 1.0)
    town.answered()
    town.pass_by(ASK_AFTER_S)
    town.answered()

    assert town.pass_by(ASK_AFTER_S + SILENT_S) == ([ANN], [ANN])


def test_a_process_that_was_stopped_itself_waits_anew_for_the_answer():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S)
    town.now_s += SILENT_S + LATE_S + 60.0

    town.roads.on_deadline(town.now_s)

    assert list(town.roads.broken()) == []
    assert town.pass_by(SILENT_S) == ([], [ANN])


def test_another_stream_to_a_peer_does_not_put_the_question_off():
    town = Town()
    town.opened()
    town.pass_by(ASK_AFTER_S / 2)

    town.opened()

    assert town.pass_by(ASK_AFTER_S / 2) == ([ANN], [])


@given(
    st.lists(
        st.tuples(st.sampled_from(["open", "close", "answer", "lose", "wait"]), st.booleans()),
        max_size=60,
    )
)
def test_whatever_happens_one_question_is_open_at_a_time_and_a_broken_road_is_asked_soon(ops):
    town, streams, asked = Town(), {ANN: 0, BOB: 0}, set()
    for what, first in ops:
        peer = ANN if first else BOB
        if what == "open":
            town.opened(peer)
            streams[peer] += 1
        elif what == "close" and streams[peer]:
            town.roads.closed(peer)
            streams[peer] -= 1
        elif what in ("answer", "lose") and peer in asked:
            town.answered(peer, there=what == "answer")
            asked.discard(peer)
        elif what == "wait":
            new, broken = town.pass_by(1.0)
            assert len(new) == len(set(new))
            assert not asked & set(new)
            asked |= set(new)
            assert set(broken) <= asked
        due_s = town.roads.next_deadline_s()
        assert due_s is None or due_s <= town.now_s + SILENT_MAX_S
        soon = due_s is not None and due_s <= town.now_s + ASK_AFTER_S
        assert all(not town.roads.is_broken(one) or one in asked or soon for one in (ANN, BOB))


def test_a_new_session_asks_broken_roads_again_and_begins_the_others_anew():
    roads = Roads()
    for peer in (b"cut", b"asked", b"over"):
        roads.opened(peer, 0.0)
    roads.on_deadline(ASK_AFTER_S)
    roads.answered(b"asked", ASK_AFTER_S, there=True)
    roads.answered(b"over", ASK_AFTER_S, there=True)
    roads.on_deadline(ASK_AFTER_S + SILENT_S)
    assert list(roads.broken()) == [b"cut"]
    list(roads.to_ask())
    for peer in (b"cut", b"over"):
        roads.closed(peer)

    roads.begun(60.0)

    assert list(roads.to_ask()) == [b"cut"]
    assert roads.is_broken(b"cut")
    assert roads.next_deadline_s() == 60.0 + ASK_AFTER_S
    roads.answered(b"cut", 60.1, there=True)
    assert not roads.is_broken(b"cut")
