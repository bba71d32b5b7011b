"""What a server keeps for stages that lose a sum, and when it hands it on."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from server.pushes import ABOVE, ALL, BELOW, ME, backward, push, queue, scheduler

from p2pswarm.server.boundary_cache import BoundaryCache, KeptAnswer, ResultRoute
from p2pswarm.server.scheduler import Scheduler

NUMBER_BYTES = 4
ROOM = 100 * NUMBER_BYTES
NAMED = (b"", ME, b"")


def bundle(value=0.0, numbers=1):
    return {"x": torch.full((numbers,), value)}


def kept(stage=1, room=ROOM):
    return BoundaryCache(stage, ME, room)


def both(one, microbatch=0, attempt=0):
    """A microbatch has gone through and is in the sum; returns what was given up and down."""
    activation, gradient = bundle(1.0), bundle(2.0)
    one.gave((microbatch, attempt), activation)
    one.counted((microbatch, attempt), gradient)
    return activation, gradient


def asks(counting, keepers=NAMED, **changes):
    return push(attempt=1, counting=counting, keepers=keepers, **changes)


def test_a_stage_below_those_that_lack_it_hands_its_activation_on():
    one = kept()
    activation, _ = both(one)

    assert one.answer(asks((2,))) == KeptAnswer(ResultRoute.ONWARD, activation)


def test_a_stage_above_those_that_lack_it_gives_its_gradient_back():
    one = kept()
    _, gradient = both(one)

    assert one.answer(asks((0,))) == KeptAnswer(ResultRoute.BACK, gradient)


def test_a_stage_that_counts_it_or_stands_between_two_that_do_computes():
    one = kept()
    both(one)

    assert one.answer(asks((1,))) is None
    assert one.answer(asks((0, 2))) is None


def test_who_is_not_named_computes():
    one = kept()
    both(one)

    for keepers in ((), (ME,), (b"", BELOW, b""), (ME, b"", ME)):
        assert one.answer(asks((2,), keepers)) is None


def test_gradients_and_batches_that_nobody_counts_get_nothing():
    one = kept()
    both(one)

    assert one.answer(backward(counting=(0,), keepers=NAMED)) is None
    assert one.answer(asks(())) is None


def test_what_is_in_no_sum_is_not_handed_on():
    one = kept()
    one.gave((0, 0), bundle())

    assert one.answer(asks((2,))) is None


def test_an_attempt_that_is_over_frees_its_memory_unless_it_was_counted():
    one = kept()
    one.gave((0, 0), bundle())
    both(one, 1)

    one.drop((0, 0))
    one.drop((1, 0))
    one.drop((7, 0))

    assert one.held_bytes == 2 * NUMBER_BYTES
    assert one.answer(asks((2,), microbatch=1)) is not None


def test_a_gradient_of_another_attempt_than_the_activation_is_kept_alone():
    one = kept()
    one.gave((0, 0), bundle())

    one.counted((0, 1), bundle(2.0))

    assert one.answer(asks((2,))) is None
    assert one.answer(asks((0,))) == KeptAnswer(ResultRoute.BACK, bundle(2.0))
    assert one.held_bytes == NUMBER_BYTES


def test_the_last_stage_keeps_gradients_and_the_first_activations():
    last, first = kept(2), kept(0)
    last.counted((0, 0), bundle(2.0))
    first.gave((0, 0), bundle(1.0))
    first.counted((0, 0), None)

    assert last.answer(asks((0,), (b"", b"", ME), stage=2)) == KeptAnswer(
        ResultRoute.BACK, bundle(2.0)
    )
    assert first.answer(asks((1,), (ME, b"", b""), stage=0)) == KeptAnswer(
        ResultRoute.ONWARD, bundle(1.0)
    )


def test_the_next_step_begins_with_nothing():
    one = kept()
    both(one)

    one.clear()

    assert one.held_bytes == 0
    assert one.answer(asks((2,))) is None


def test_the_next_incarnation_has_what_belongs_to_the_sum_that_it_keeps():
    former, heir = kept(), kept()
    both(former)
    former.gave((1, 0), bundle())

    heir.resume(former)
    heir.resume(None)

    assert heir.answer(asks((2,))) is not None
    assert heir.held_bytes == 2 * NUMBER_BYTES
    assert former.held_bytes == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gave", "counted", "drop"]),
            st.integers(0, 5),
            st.integers(0, 2),
            st.integers(0, 60),
        ),
        max_size=40,
    )
)
def test_it_never_holds_more_than_it_may(told):
    one = kept()
    for what, microbatch, attempt, numbers in told:
        key = microbatch, attempt
        if what == "gave":
            one.gave(key, bundle(numbers=numbers))
        elif what == "counted":
            one.counted(key, bundle(numbers=numbers))
        else:
            one.drop(key)
        assert 0 <= one.held_bytes <= ROOM

    heir = kept()
    heir.resume(one)
    assert heir.held_bytes <= ROOM
    heir.clear()
    assert heir.held_bytes == 0


def with_kept():
    base = scheduler()
    one = Scheduler(1, 3, 5, 8, base.expected, kept())
    one.moved_to(0)
    both(one.kept)
    return one


def test_a_scheduler_answers_at_once_what_is_kept():
    one = with_kept()
    item = queue(one, asks((2,)))

    answer = one.answered(item)

    assert answer is not None
    assert answer.exit is ResultRoute.ONWARD
    assert one.take(0.0) is None
    assert one.queued() == 0


def test_a_scheduler_computes_what_is_not_kept():
    one = with_kept()
    item = queue(one, push(1, counting=ALL))

    assert one.answered(item) is None
    assert one.take(0.0) is item


def test_an_answer_is_for_the_step_at_hand():
    one = with_kept()
    one.moved_to(1)
    item = queue(one, asks((2,), microbatch=8, step=1))

    assert one.answered(item) is None


def test_what_a_fence_drops_is_not_kept():
    one = with_kept()
    first = queue(one, push(3), BELOW)
    one.take(0.0)
    one.done(first, 0.1, counted=False)
    one.kept.gave((3, 0), bundle())
    one.handed((3, 0), ABOVE)
    before = one.kept.held_bytes

    one.moved_to(0)

    assert before == 3 * NUMBER_BYTES
    assert one.kept.held_bytes == 0


def test_a_copy_on_the_host_takes_the_place_of_what_is_kept():
    one = kept()
    activation, gradient = both(one)
    copies = bundle(1.0), bundle(2.0)

    for given_bundle, copy in zip((activation, gradient), copies, strict=True):
        assert one.keeps(0, given_bundle)
        one.replace(0, given_bundle, copy)

    assert one.answer(asks((2,))).bundle is copies[0]
    assert one.answer(asks((0,))).bundle is copies[1]
    assert one.held_bytes == 2 * NUMBER_BYTES


def test_a_copy_of_what_is_no_longer_kept_is_dropped():
    one = kept()
    first, _ = both(one)
    second, _ = both(one, attempt=1)

    one.replace(0, first, bundle(9.0))
    one.replace(7, first, bundle(9.0))

    assert one.answer(asks((2,))).bundle is second
