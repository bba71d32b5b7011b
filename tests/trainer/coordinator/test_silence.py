"""Members from which nothing comes, and when a step goes on without them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.trainers import SILENCE_S
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.silence import (
    EXCUSED_MAX_S,
    LEARNED_MAX_S,
    LOOK_AGAIN_S,
    NOT_HEARD_S,
    SAID_AGAIN_S,
    SILENT_MAX_S,
    SILENT_S,
    Silence,
)
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.probation import Probation
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.step.in_flight import FENCE_S

LONG = RunConfig(stages=1, steps=2, batch=BatchConfig(microbatches=999, evaluate_every=0))


class Listening(Play):
    """A play whose members say their load every second, but for those that are mute."""

    def live(self, seconds: int, *, mute: tuple[Incarnation, ...] = ()) -> list[Incarnation]:
        """Let time pass; returns who was evicted."""
        evicted = []
        for _ in range(seconds):
            for member in self.coordinator.members.ready():
                if member.incarnation not in mute:
                    self.coordinator.silence.on_word(member.incarnation, self.now_s)
            self.wait(1.0)
            evicted += [action.incarnation for action in self.seen(act.Evict)]
        return evicted


PROVEN = Probation([b"a" * 32])


def heard_at(*times_s: float) -> tuple[Silence, Incarnation]:
    members = Membership(stages=1)
    silence, one = Silence(members, PROVEN), members.admit(b"a" * 32, "h:1", 0, 0).incarnation
    for time_s in times_s:
        silence.on_word(one, time_s)
    return silence, one


def two_at_work() -> tuple[Listening, Incarnation, Incarnation]:
    """Two members that have a microbatch each, and are heard."""
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.hand(ann, 0)
    play.hand(bob, 1)
    play.live(1)
    return play, ann, bob


def test_a_silent_member_is_out_soon_when_the_step_cannot_end_without_it():
    play, ann, _ = two_at_work()

    evicted = play.live(int(SILENT_S) + 1, mute=(ann,))

    assert evicted == [ann]


def test_a_silent_member_stays_while_others_have_work_that_was_never_launched():
    play = Listening(LONG)
    ann, bob = play.serve("a"), play.serve("b")
    play.hand(ann, 0)
    play.hand(bob, 1)
    play.live(1)

    evicted = play.live(int(SILENT_S) * 3, mute=(ann,))

    assert evicted == []


def test_one_that_was_silent_while_it_was_not_needed_is_out_when_it_is():
    play = Listening(LONG)
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    assert play.live(6, mute=(ann,)) == []

    play.stuck(0)  # now a fence waits for it
    evicted = play.live(int(LOOK_AGAIN_S), mute=(ann,))

    assert evicted == [ann]
    assert play.coordinator.members.alive(bob)


def test_one_that_is_silent_while_it_averages_is_out_and_one_that_has_answered_is_not():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    play.count(ann, 0)
    play.count(bob, 1)
    play.told_reduced(bob, play.seen(act.SendReduce)[-1].message.generation)

    assert play.live(int(SILENT_S) + 1, mute=(bob,)) == []
    assert play.live(int(SILENT_S) + 1, mute=(ann, bob)) == []  # both: nobody else is there


def test_the_only_ready_member_of_a_stage_is_out_if_one_that_is_avoided_has_the_weights():
    play = Listening()
    ann = play.serve("a")
    bob = play.join("b")
    play.coordinator._blame.servers.avoid(bob.peer, play.now_s)
    play.ready(bob)
    play.live(1)
    play.count(ann, 0)
    play.hand(ann, 1)
    assert not play.coordinator.members.alive(bob).ready
    play.coordinator.silence.on_word(bob, play.now_s + SILENT_S)

    evicted = play.live(int(SILENT_S) + 1, mute=(ann,))
    play.promise(bob)

    assert evicted == [ann]
    assert play.coordinator.members.alive(bob).ready


def test_after_a_cut_of_the_trainer_itself_nobody_is_out_for_speaking_later_than_another():
    """TCP sends again what was lost: to one at once, to another some seconds later."""
    play, ann, bob = two_at_work()

    evicted = play.live(int(SILENT_S) + 1, mute=(ann, bob))
    evicted += play.live(int(SILENT_S), mute=(ann,))
    assert evicted == []

    assert play.live(2, mute=(ann,)) == [ann], "it has as much time again, and no more"


def test_in_a_cut_of_the_trainer_itself_nobody_is_out_for_having_spoken_sooner_than_another():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.coordinator._probation.prove([ann.peer, bob.peer])
    play.hand(ann, 0)
    play.hand(bob, 1)
    play.live(1)
    for one in (ann, bob):
        play.coordinator.silence.on_word(one, play.now_s)
    play.wait(0.4)
    play.coordinator.silence.on_word(bob, play.now_s)

    play.wait(SILENT_S - 0.2)

    assert play.seen(act.Evict) == []


@pytest.mark.parametrize("cut_s", [3, 8])
def test_what_members_did_not_hear_in_a_cut_of_the_trainer_itself_does_not_count(cut_s):
    """They tell the standbys, whose words come when the cut ends, before the members' own or after.

    TCP sends again at the latest when as much time has passed as the cut took.
    """
    play, ann, bob = two_at_work()
    silence = play.coordinator.silence
    play.live(cut_s, mute=(ann, bob))

    silence.on_deaf_members([ann, bob], play.now_s)
    silence.on_word(bob, play.now_s)
    excused_s = play.now_s + min(cut_s + 1.0, EXCUSED_MAX_S)  # the last word came a second before
    while play.now_s < excused_s:
        silence.on_deaf_members([ann], play.now_s)
        for _ in range(2):
            silence.on_unheard_time(bob, 5.0, play.now_s)
        assert not silence.silent(ann, play.now_s)
        assert not silence.silent(bob, play.now_s)
        assert play.live(1) == []

    silence.on_deaf_members([ann], play.now_s)
    assert silence.silent(ann, play.now_s)


def test_where_all_of_a_stage_are_silent_a_fence_waits_for_as_long_as_a_link_lasts():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    play.stuck(0)

    assert play.live(int(SILENT_MAX_S) - 2, mute=(ann, bob)) == []
    assert set(play.live(int(FENCE_S) + 2, mute=(ann, bob))) == {ann, bob}


def test_one_that_is_heard_and_answers_no_fence_is_out_at_the_deadline_of_the_fence():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    play.stuck(0)
    play.promise(bob)

    assert play.live(int(FENCE_S) - 1) == []
    assert play.live(1) == [ann]


def test_a_member_that_hears_nothing_is_out_as_if_it_were_silent():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    play.live(4)
    play.stuck(0)
    play.promise(bob)

    stranger = Incarnation(b"stranger" * 4, ann.number)
    play.coordinator.silence.on_deaf_members([ann, stranger], play.now_s)

    assert play.live(1) == [ann]


def test_where_all_of_a_stage_hear_nothing_nobody_is_out_and_a_standbys_word_is_soon_forgotten():
    silence, one = heard_at(0.0, 5.0)
    silence.on_deaf_members([one], 5.0)

    assert silence.silent(one, 5.0)
    assert not silence.may_come_back(one, 5.0)
    assert not silence.silent(one, 5.0 + NOT_HEARD_S)


def test_a_member_that_says_twice_that_it_hears_nothing_is_out_though_it_is_heard():
    play, ann, _ = two_at_work()

    play.coordinator.silence.on_unheard_time(ann, SILENCE_S, play.now_s)
    assert play.live(int(SAID_AGAIN_S)) == []
    play.coordinator.silence.on_unheard_time(ann, SILENCE_S + SAID_AGAIN_S, play.now_s)

    assert play.live(1) == [ann]


def test_what_a_stopped_trainer_finds_in_its_sockets_puts_nobody_out():
    """All say there that they hear nothing, some of them are read first, and the clock is late."""
    silence, one = heard_at(0.0)
    for for_s in (SILENCE_S, SILENCE_S + 1.0, SILENCE_S + 9.0):
        silence.on_unheard_time(one, for_s, 1.0)

    silence.on_word(one, 1.0 + SAID_AGAIN_S)
    silence.on_unheard_time(one, 0.2, 1.0 + SAID_AGAIN_S)

    assert not silence.silent(one, 1.0 + SAID_AGAIN_S)
    silence.on_unheard_time(one, SILENCE_S, 2.0 + SAID_AGAIN_S)
    assert not silence.silent(one, 2.0 + SAID_AGAIN_S), "it is said anew, for the first time"


@given(st.integers(-3, 3), st.floats(0.0, 20.0))
def test_what_a_member_asked_in_another_life_however_late_it_comes_tells_nothing(lives, said_s):
    silence, one = heard_at(0.0, said_s)
    asked_in = Incarnation(one.peer, one.number + lives)

    silence.on_deaf_members([asked_in], said_s)

    assert silence.silent(one, said_s) == (lives == 0)
    assert not silence.silent(asked_in, said_s) or lives == 0


def test_a_newcomer_that_is_silent_holds_nobody_up():
    play = Listening()
    play.serve("a")
    newcomer = play.join("b")
    play.coordinator.silence.on_word(newcomer, 0.0)

    assert play.live(10) == []


def test_a_member_that_came_back_from_a_pause_may_pause_twice_as_long():
    silence, one = heard_at(0.0, 3.5)

    assert silence.limit_s(one.peer) == 7.0
    assert not silence.silent(one, 3.5 + 6.9)
    assert silence.silent(one, 3.5 + 7.0)


def test_a_pause_that_cost_a_member_its_incarnation_teaches_as_well():
    members = Membership(stages=1)
    silence = Silence(members, PROVEN)
    first = members.admit(b"a" * 32, "h:1", 0, 0).incarnation
    silence.on_word(first, 0.0)
    members.end(first)
    silence.on_end(first)
    again = members.admit(b"a" * 32, "h:1", 0, 0).incarnation

    silence.on_word(again, 3.0)

    assert silence.limit_s(again.peer) == 6.0


def test_a_night_away_teaches_nothing():
    silence, one = heard_at(0.0, 30_000.0)

    assert silence.limit_s(one.peer) == SILENT_S


def test_a_learned_pause_is_forgotten_in_some_minutes():
    play = Listening()
    ann, bob = play.serve("a"), play.serve("b")
    play.live(1)
    for _ in range(4):
        play.now_s += 1.0
        play.coordinator.silence.on_word(bob, play.now_s)
    play.live(1)
    assert play.coordinator.silence.limit_s(ann.peer) > SILENT_S

    play.live(300)

    assert play.coordinator.silence.limit_s(ann.peer) == SILENT_S


def test_what_is_said_by_a_former_incarnation_is_not_heard():
    members = Membership(stages=1)
    silence = Silence(members, PROVEN)

    silence.on_word(Incarnation(b"a" * 32, 1), 0.0)

    assert silence.next_deadline_s() is None


@given(st.lists(st.floats(min_value=0.01, max_value=40.0), min_size=1, max_size=40))
def test_a_limit_is_always_between_the_usual_one_and_the_links_own(gaps_s):
    silence, one = heard_at(0.0)
    now_s = 0.0

    for gap_s in gaps_s:
        now_s += gap_s
        silence.on_word(one, now_s)
        assert SILENT_S <= silence.limit_s(one.peer) <= LEARNED_MAX_S < SILENT_MAX_S
        assert not silence.silent(one, now_s)


def test_a_trainer_that_says_nothing_itself_puts_nobody_out_for_hearing_nothing():
    silence, one = heard_at(0.0)
    silence.on_quiet(quiet=True)

    silence.on_deaf_members([one], 1.0)
    for now_s in (1.0, 2.5):
        silence.on_unheard_time(one, SILENCE_S, now_s)
    assert not silence.silent(one, 2.4)

    silence.on_quiet(quiet=False)
    silence.on_word(one, 2.5)
    silence.on_deaf_members([one], 3.0)
    assert silence.silent(one, 3.0)
