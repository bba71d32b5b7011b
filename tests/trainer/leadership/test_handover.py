"""When a coordinator hands over, and that it does not do so for ever."""

from itertools import pairwise
from random import Random

import pytest

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import STAGES_MAX
from p2pswarm.run.messages.trainers import (
    KNOCKS_MAX,
    PROBES_MAX,
    CoordinatorProbe,
    Unheard,
    Whereabouts,
)
from p2pswarm.server.trainer_search import DIAL_S
from p2pswarm.trainer.leadership.handover import (
    ASK_AGAIN_MAX_S,
    ASK_AGAIN_S,
    KNOCK_S,
    MISSED_S,
    PAUSE_MAX_S,
    PAUSE_S,
    SEEK_S,
    UNHEARD_S,
    Handover,
    RecentWords,
)
from p2pswarm.trainer.members.membership import Member


def peer(name: str) -> bytes:
    return name.encode().ljust(32, b"-")


def member(name: str, stage: int = 0) -> Member:
    return Member(Incarnation(peer(name), 1), f"{name}:1", stage, 0, ready=True)


def where(name: str) -> Whereabouts:
    return Whereabouts(peer(name), f"{name}:1")


def peers(*names: str) -> set[bytes]:
    return {peer(name) for name in names}


def never(_one: Incarnation) -> bool:
    return False


X, Y = peer("x"), peer("y")
FIRST, SECOND = [member("f", 0)], [member("s", 1)]
VOTERS = peers("x", "s")
REACHES_ALL = [(X, peers("f", "s", "x"))]


def missing(now_s: float = 0.0) -> Handover:
    """The server of stage 1 was there, and is gone since 0."""
    rule = Handover(2)
    rule.look([FIRST, SECOND], never, now_s)
    rule.look([FIRST, []], never, now_s)
    return rule


def asked(rule: Handover, now_s: float = MISSED_S) -> Handover:
    assert rule.look([FIRST, []], never, now_s)
    rule.question([where("x")], now_s)
    return rule


def test_nobody_is_asked_while_every_stage_is_heard():
    rule = Handover(2)

    assert not any(rule.look([FIRST, SECOND], never, now_s) for now_s in range(100))


def test_a_member_that_waits_here_makes_up_for_no_server_that_is_silent():
    """It was a server of the stage. This trainer reaches it, and no step ends for all that."""
    rule, both = Handover(2), [*SECOND, member("w", 1)]
    rule.look([FIRST, both], never, 0.0)
    silent = lambda one: one.peer == peer("s")  # noqa: E731
    for now_s in (1.0, 1.0 + MISSED_S):
        rule.look([FIRST, SECOND], silent, now_s, peers("w"))
    assert peer("w") not in {one.peer for one in rule.question([], 1.0 + MISSED_S)}

    theirs = [(X, peers("f", "w")), (Y, peers("f", "s", "x"))]
    assert rule.successor(peers("f", "w"), theirs, VOTERS, 1.0 + MISSED_S) == Y


def voteless(now_s: float = MISSED_S) -> Handover:
    """Every stage is heard, and the record has waited for votes since 0."""
    rule = Handover(2)
    assert not rule.look([FIRST, SECOND], never, 0.0, voteless=True)
    assert rule.look([FIRST, SECOND], never, now_s, voteless=True)
    rule.question([where("s"), where("x")], now_s)
    return rule


def test_a_coordinator_without_votes_hands_over_to_a_trainer_that_reaches_another_voter():
    """The voter x answers with another memory: it is there, and its vote is not."""
    rule = voteless()

    assert rule.successor(peers("x"), REACHES_ALL, VOTERS, MISSED_S) == X


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ([(X, peers("f", "x"))], "it does not reach stage 1"),
        ([(Y, peers("f", "t", "y"))], "it reaches no majority"),
        ([(X, peers("f", "t", "x"))], "it reaches no voter that we do not"),
    ],
)
def test_a_coordinator_without_votes_goes_on_if_no_other_would_have_more(theirs, why):
    rule = Handover(2)
    stages = [FIRST, [*SECOND, member("t", 1)]]
    for now_s in (0.0, MISSED_S):
        rule.look(stages, never, now_s, voteless=True)
    rule.question([where("s"), where("x")], MISSED_S)

    assert rule.successor(peers("x"), theirs, VOTERS, MISSED_S) is None, why


def test_a_coordinator_without_votes_asks_the_voters_itself_and_each_peer_once():
    rule = voteless()
    rule.look([FIRST, []], never, MISSED_S, voteless=True)
    both = [where("s"), where("x")]

    assert rule.missed(both, 2 * MISSED_S) == both


def test_votes_that_come_after_a_while_are_no_reason_to_hand_over():
    rule = voteless()
    rule.look([FIRST, SECOND], never, MISSED_S, voteless=False)

    assert rule.successor(peers("x"), REACHES_ALL, VOTERS, MISSED_S) is None


def test_standbys_are_asked_when_a_stage_was_missed_for_a_while():
    rule = missing()

    assert not rule.look([FIRST, []], never, MISSED_S - 0.1)
    assert rule.look([FIRST, []], never, MISSED_S)


def test_a_stage_whose_members_are_all_silent_is_missed_at_once():
    rule = Handover(2)
    two = [*SECOND, member("t", 1)]

    assert not rule.look([FIRST, two], lambda one: one.peer == peer("s"), 5.0)
    assert rule.look([FIRST, two], lambda one: one.peer != peer("f"), 5.0)


def test_it_asks_about_a_server_of_every_stage_and_the_voters_and_asks_the_missed_itself():
    rule = missing()
    rule.look([FIRST, []], never, MISSED_S)

    assert rule.question([where("x")], MISSED_S) == (where("x"), where("s"), where("f"))
    assert rule.missed([], MISSED_S) == [where("s")]


def test_one_that_was_put_out_is_asked_about_beside_those_that_are_ready():
    """The coordinator did not hear t, and s has died since; a standby may reach t."""
    rule = Handover(2)
    rule.look([FIRST, [*SECOND, member("t", 1)]], never, 0.0)
    rule.look([FIRST, SECOND], never, 1.0)
    rule.look([FIRST, []], never, 2.0)

    assert rule.look([FIRST, []], never, 2.0 + MISSED_S)
    assert rule.missed([], 2.0 + MISSED_S) == [where("s"), where("t")]


def test_one_that_serves_another_stage_by_now_is_not_asked_for_the_former():
    rule = Handover(2)
    rule.look([FIRST, [*SECOND, member("t", 1)]], never, 0.0)
    rule.look([[*FIRST, member("t", 0)], SECOND], never, 1.0)
    rule.look([FIRST, []], never, 2.0)

    assert rule.look([FIRST, []], never, 2.0 + MISSED_S)
    assert rule.missed([], 2.0 + MISSED_S) == [where("s")]


def test_a_run_of_many_stages_asks_as_much_as_a_message_holds_the_missed_stages_first():
    rule = Handover(STAGES_MAX)
    ready = [[member(f"{stage} {n}", stage) for n in range(9)] for stage in range(STAGES_MAX)]
    rule.look(ready, never, 0.0)
    ready[200] = []
    rule.look(ready, never, 0.0)

    assert rule.look(ready, never, MISSED_S)
    question = rule.question([where("x")], MISSED_S)

    assert len(question) <= PROBES_MAX
    assert where("200 0") in question
    reached = {one.peer for one in question}
    assert rule.successor(set(), [(X, reached)], [X], MISSED_S) == X


def test_the_longer_a_stage_is_missed_the_less_often_it_is_asked_for():
    rule, times = missing(), []
    for now_s in (0.1 * tick for tick in range(400)):
        if rule.look([FIRST, []], never, now_s):
            times.append(now_s)
            rule.question([], now_s)
    pauses = [later - at for at, later in pairwise(times)]

    assert pauses[0] == pytest.approx(ASK_AGAIN_S, abs=0.11)
    assert max(pauses) <= ASK_AGAIN_MAX_S + 0.11
    assert pauses == sorted(pauses) or max(pauses) - pauses[-1] < 0.11


def test_the_first_standby_that_reaches_every_stage_and_the_voters_is_to_lead():
    rule = asked(missing())
    theirs = [(X, peers("f")), (Y, peers("f", "s", "x")), (peer("z"), peers("f", "s", "x"))]

    assert rule.successor(set(), theirs, VOTERS, MISSED_S) == Y


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pytest.param({"s"}, {"f", "s", "x"}, id="this trainer reaches the missed server, too"),
        pytest.param(set(), {"f", "x"}, id="the standby does not reach it either"),
        pytest.param(set(), {"s", "x"}, id="the standby misses another stage"),
    ],
)
def test_nothing_is_handed_over_where_nothing_would_be_won(ours, theirs):
    rule = asked(missing())

    assert rule.successor(peers(*ours), [(X, peers(*theirs))], VOTERS, MISSED_S) is None


def test_a_standby_that_does_not_reach_enough_voters_is_not_to_lead():
    rule = asked(missing())
    voters = peers("u", "v", "x", "w")  # and this trainer's own, which is reached: five

    assert rule.successor(set(), [(X, peers("f", "s"))], voters, MISSED_S) is None
    assert rule.successor(set(), [(X, peers("f", "s", "u"))], voters, MISSED_S) == X


def test_a_stage_of_which_no_server_is_known_is_handed_to_nobody():
    rule = Handover(2)
    for now_s in (0.0, MISSED_S):
        rule.look([FIRST, []], never, now_s)
    rule.question([], MISSED_S)

    assert rule.successor(set(), [(X, peers("f", "x"))], [X], MISSED_S) is None


def test_who_knocks_at_a_standby_with_the_weights_is_asked_about_the_next_time():
    rule = Handover(2)
    for now_s in (0.0, MISSED_S):
        rule.look([FIRST, []], never, now_s)
    rule.on_knocks(
        [
            CoordinatorProbe(1, 3, where("old")),
            CoordinatorProbe(1, 6, where("k")),
            CoordinatorProbe(0, 7, where("o")),
        ],
        7,
    )

    assert set(rule.question([], MISSED_S)) == {where("k"), where("f")}
    assert rule.successor(set(), [(X, peers("f", "k"))], [X], MISSED_S) == X


UNHEARD = MISSED_S + UNHEARD_S


def test_a_stage_is_handed_to_a_standby_that_is_not_heard_once_it_was_missed_for_long():
    """The way from the standby may be cut alone; nothing ends here while the stage is missed."""
    rule = asked(missing())

    assert rule.unheard_successor(set(), [X, Y], UNHEARD_S - 0.1) is None
    assert rule.unheard_successor(set(), [X, Y], UNHEARD) == X


@pytest.mark.parametrize(
    ("ours", "standbys"), [(peers("s"), [X]), (set(), [])], ids=["we reach it", "nobody stands by"]
)
def test_a_stage_is_not_handed_to_one_that_is_not_heard_where_nothing_would_be_won(ours, standbys):
    assert asked(missing()).unheard_successor(ours, standbys, UNHEARD) is None


def test_a_stage_that_is_gone_for_good_is_rarely_handed_to_one_that_is_not_heard():
    rule, times = missing(), []
    for tick in range(int(2.5 * PAUSE_MAX_S)):
        now_s = float(tick)
        if rule.look([FIRST, []], never, now_s):
            rule.question([where("x")], now_s)
            if rule.unheard_successor(set(), [X, Y], now_s) is not None:
                rule.on_handover(X, tick, now_s)
                times.append(now_s)

    assert len(times) == 3
    assert all(later - at >= PAUSE_MAX_S for at, later in pairwise(times))


def test_servers_that_knock_take_only_so_much_room():
    rule = missing()
    rule.on_knocks([CoordinatorProbe(1, 7, where(f"k{n}")) for n in range(KNOCKS_MAX)], 7)

    assert len(rule.missed([], MISSED_S)) <= 8


def test_a_new_term_waits_for_its_members_first():
    rule = asked(missing())
    rule.on_term()

    assert not rule.look([[], []], never, 100.0)
    assert rule.look([[], []], never, 100.0 + MISSED_S)


def test_without_progress_the_pauses_between_handovers_grow():
    rule, times = missing(), []
    for tick in range(40_000):
        now_s = 0.1 * tick
        if rule.look([FIRST, []], never, now_s):
            rule.question([where("x")], now_s)
            if rule.successor(set(), REACHES_ALL, [X], now_s) == X:
                rule.on_handover(X, 5, now_s)
                times.append(now_s)
    pauses = [later - at for at, later in pairwise(times)]

    assert pauses[0] >= PAUSE_S
    late_s = ASK_AGAIN_MAX_S + 0.2  # it is seen when the standbys are asked next
    assert all(after >= 2 * (before - late_s) for before, after in pairwise(pauses[:5]))
    assert max(pauses) <= PAUSE_MAX_S + ASK_AGAIN_MAX_S


def test_a_record_that_was_decided_since_makes_the_pause_small_again():
    rule = missing()
    for height in (5, 5, 5):
        rule.on_handover(X, height, 0.0)
    rule.on_handover(X, 6, 0.0)
    asked(rule)

    assert rule.successor(set(), REACHES_ALL, [X], PAUSE_S - 0.1) is None
    assert rule.successor(set(), REACHES_ALL, [X], PAUSE_S) == X


def test_when_the_one_that_was_named_is_gone_another_is_named_at_once():
    rule = asked(missing())
    rule.on_handover(X, 5, MISSED_S)
    reaches = peers("f", "s", "x")

    assert rule.successor(set(), [(X, reaches), (Y, reaches)], VOTERS, 3.0) is None
    assert rule.successor(set(), [(X, ()), (Y, reaches)], VOTERS, 3.0) == Y
    assert rule.successor(set(), [(Y, reaches)], VOTERS, 3.0) == Y


def test_one_that_was_named_in_vain_is_not_named_again_at_once_whoever_came_after_it():
    rule = asked(missing())
    rule.on_handover(X, 5, MISSED_S)
    rule.on_handover(Y, 5, MISSED_S)

    assert rule.successor(set(), REACHES_ALL, VOTERS, 3.0) is None
    assert rule.successor(set(), REACHES_ALL, VOTERS, MISSED_S + PAUSE_S) == X


@pytest.mark.parametrize("seed", range(20))
def test_two_trainers_whose_answers_are_false_hand_over_rarely(seed):
    """Each says of the other that it reaches all, and never does a step end."""
    rng = Random(seed)
    rules, leads, count = [missing(), missing()], 0, 0
    for tick in range(10_000):
        now_s, rule = 0.5 * tick, rules[leads]
        if rule.look([FIRST, SECOND if rng.random() < 0.1 else []], never, now_s):
            rule.question([where("x")], now_s)
            if rule.successor(set(), [(X, peers("f", "s", "x"))], [X], now_s) == X:
                rule.on_handover(X, 5, now_s)
                leads, count = 1 - leads, count + 1
                rules[leads].on_term()

    assert 2 <= count <= 2 * (5000 / PAUSE_MAX_S + 7)


def test_one_server_is_one_seeker_whatever_incarnations_it_names():
    seekers = RecentWords[Unheard](SEEK_S)
    for number in range(2 * KNOCKS_MAX):
        seekers.add(peer("liar"), Unheard(peer("liar"), number), 0.0)
    seekers.add(peer("honest"), Unheard(peer("honest"), 7), 0.0)

    assert seekers.all(0.0) == (
        Unheard(peer("liar"), 2 * KNOCKS_MAX - 1),
        Unheard(peer("honest"), 7),
    )


def test_a_knock_is_remembered_until_the_next_one_of_a_server_that_dials_two_others_in_vain():
    assert KNOCK_S > 2 * DIAL_S


def test_knocks_are_forgotten_and_their_number_is_limited():
    knocks = RecentWords[CoordinatorProbe](KNOCK_S)
    for number in range(2 * KNOCKS_MAX):
        knocks.add(peer(f"k{number}"), CoordinatorProbe(0, 1, where(f"k{number}")), 0.0)
    again = CoordinatorProbe(1, 2, where("k0"))
    knocks.add(peer("k0"), again, 1.0)

    assert len(knocks.all(1.0)) == KNOCKS_MAX
    assert knocks.all(KNOCK_S) == (again,)
    assert knocks.all(1.0 + KNOCK_S) == ()
