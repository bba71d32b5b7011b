"""When a path in use is asked, and when it is doubted: soon, and never without a reason."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.link.liveness import (
    ANSWER_S_MAX,
    LATE_S,
    REPAIRS,
    TICK_S,
    TIMER_S_MIN,
    LinkSilence,
    PathWatch,
    answer_s,
)

NOTHING, ASK, DOUBT = LinkSilence.NONE, LinkSilence.ASK, LinkSilence.DOUBT
DAY_S = 86_400


def news_of(watch: PathWatch, until_s: float, heard: int = 0, patience_s: float = 1.4, **in_use):
    """What the ticks that are due until then say, with their times."""
    news = []
    while watch.at_s is not None and watch.at_s <= until_s:
        now_s = watch.at_s
        said = watch.on_deadline(heard, patience_s, now_s, in_use=in_use.get("in_use", True))
        if said is not NOTHING:
            news.append((now_s, said))
    return news


def test_a_path_that_brings_nothing_is_asked_and_then_doubted():
    watch = PathWatch()
    watch.begin(0, 10.0)

    news = news_of(watch, 10.0 + TICK_S + 1.4)

    assert [said for _, said in news] == [ASK, DOUBT]
    assert news[0][0] == 10.0 + TICK_S
    assert abs(news[1][0] - news[0][0] - 1.4) < 1e-9
    assert watch.doubts(0)


def test_any_record_lifts_the_doubt_before_the_next_tick():
    watch = PathWatch()
    watch.begin(0, 0.0)
    news_of(watch, 3.0)

    assert watch.doubts(0)
    assert not watch.doubts(1)
    assert news_of(watch, watch.at_s, heard=1) == []
    assert not watch.doubted


def test_a_doubt_is_raised_again_ever_less_often():
    """The search for another way may have ended before one was there."""
    watch = PathWatch()
    watch.begin(0, 0.0)

    doubts = [at_s for at_s, said in news_of(watch, 60.0) if said is DOUBT]
    pauses = [after - before for before, after in pairwise(doubts)]

    assert 3 <= len(doubts) <= 7
    assert pauses == sorted(pauses)


def test_a_link_at_rest_is_not_watched():
    watch = PathWatch()
    watch.begin(0, 0.0)

    assert news_of(watch, 10.0, in_use=False) == []
    assert watch.at_s is None


def test_what_was_asked_is_waited_for_even_when_the_link_comes_to_rest():
    """The last stream was reset because a call was too late: the path is still not proven."""
    watch = PathWatch()
    watch.begin(0, 0.0)
    news_of(watch, TICK_S)

    assert [said for _, said in news_of(watch, 3.0, in_use=False)] == [DOUBT]


def test_a_tick_that_comes_late_proves_nothing():
    """We stood still ourselves: what came meanwhile has yet to be read."""
    watch = PathWatch()
    watch.begin(0, 0.0)
    news_of(watch, TICK_S)

    late_s = watch.at_s + 30.0

    assert watch.on_deadline(0, 1.4, late_s, in_use=True) is NOTHING
    assert not watch.doubted
    assert watch.at_s == late_s + TICK_S


def test_a_new_path_is_not_doubted_for_what_the_old_one_did_not_bring():
    watch = PathWatch()
    watch.begin(0, 0.0)
    news_of(watch, 5.0)

    watch.stop()
    watch.begin(0, 5.0)

    assert not watch.doubts(0)
    assert [said for _, said in news_of(watch, 5.0 + TICK_S)] == [ASK]


@given(st.floats(0, 10), st.floats(0, 10))
def test_the_time_for_an_answer_covers_three_losses_and_is_bounded(srtt_s, rttvar_s):
    limit_s = answer_s(srtt_s, rttvar_s)

    assert REPAIRS * TIMER_S_MIN <= limit_s <= ANSWER_S_MAX
    assert limit_s == ANSWER_S_MAX or limit_s >= REPAIRS * (srtt_s + TIMER_S_MIN)


@given(
    st.lists(st.tuples(st.floats(0, 2), st.booleans(), st.booleans()), max_size=60),
    st.floats(0.2, 8.0),
)
def test_a_doubt_has_a_question_that_was_not_answered_in_time(steps, patience_s):
    """Whatever comes, whenever ticks come: no doubt before the time for an answer is over."""
    watch, now_s, heard = PathWatch(), 0.0, 0
    asked_s = None
    watch.begin(heard, now_s)
    for late_s, came, in_use in steps:
        heard += came
        if watch.at_s is None:
            asked_s = None
            watch.begin(heard, now_s)
            continue
        now_s = watch.at_s + late_s
        said = watch.on_deadline(heard, patience_s, now_s, in_use=in_use)
        if came:
            assert said is NOTHING
            asked_s = None
        if said is ASK:
            assert asked_s is None
            asked_s = now_s
        if said is DOUBT:
            assert asked_s is not None
            assert now_s - asked_s >= patience_s - 1e-6
            assert late_s <= LATE_S + 1e-6
        assert watch.at_s is None or now_s < watch.at_s <= now_s + TICK_S


def test_a_day_of_loss_and_pauses_raises_hardly_a_doubt():
    """2 % of all packets are lost each way, and the peer stands still for a second each minute.

    A ping is answered after a round trip and the timers of TCP for what was lost: 200 ms more than
    a round trip, doubled each time. What a doubt costs is a connection beside; the link moves only
    if the peer answers there, and the path stays silent.
    """
    rng = random.Random(7)
    rtt_s = 0.05
    watch, doubts, answers, heard = PathWatch(), 0, [], 0
    watch.begin(0, 0.0)
    while (now_s := watch.at_s) < DAY_S:
        heard += sum(at_s <= now_s for at_s in answers)
        answers = [at_s for at_s in answers if at_s > now_s]
        said = watch.on_deadline(heard, answer_s(rtt_s, 0.01), now_s, in_use=True)
        doubts += said is DOUBT
        if said is ASK:
            came_s = now_s
            for _way in range(2):
                timer_s = rtt_s + TIMER_S_MIN
                while rng.random() < 0.02:
                    came_s += timer_s
                    timer_s *= 2
                came_s += rtt_s / 2
            into_s = came_s % 60
            answers.append(came_s + 1 - into_s if into_s < 1 else came_s)

    assert doubts <= 2
