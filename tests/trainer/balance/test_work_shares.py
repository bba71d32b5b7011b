"""What a server tells of its speed is believed as far as its share of the work shows it."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.balance.balance import BELIEVED, LEAST, WorkShares

ANN, BOB, CARL = (Incarnation(name * 32, number) for number, name in enumerate((b"a", b"b", b"c")))
BIG = 4 * int(LEAST)


def seen(steps: int = 3, **counts: int) -> WorkShares:
    """Shares after steps in which each has counted so many."""
    shares = WorkShares()
    names = {"ann": ANN, "bob": BOB, "carl": CARL}
    for _ in range(steps):
        shares.on_step({names[name]: n for name, n in counts.items()}, sum(counts.values()))
    return shares


def test_what_fits_the_shares_is_believed_as_it_is():
    rates = {ANN: 4.0, BOB: 2.0, CARL: 2.2}

    assert seen(ann=64, bob=32, carl=32).believed(rates) == rates


@given(told=st.floats(1e-5, 1e5), share=st.integers(8, BIG // 2 - 1))
def test_a_lie_moves_the_rate_of_a_stage_by_what_the_liar_does_there_and_no_more(told, share):
    honest = (BIG - share) // 2
    shares = seen(ann=share, bob=honest, carl=honest)

    believed = shares.believed({ANN: told, BOB: 1.0, CARL: 1.0})

    true_rate = share / honest
    assert 0.8 * true_rate / BELIEVED <= believed[ANN] <= 1.2 * true_rate * BELIEVED
    assert (believed[BOB], believed[CARL]) == (1.0, 1.0)


def test_one_of_two_that_claims_to_be_fast_is_not_believed():
    believed = seen(ann=64, bob=64).believed({ANN: 1e5, BOB: 1.0})

    assert believed == {ANN: BELIEVED, BOB: 1.0}


def test_who_has_just_come_is_believed_until_its_share_shows_something():
    shares = seen(ann=64, bob=64)
    shares.on_step({ANN: 64, BOB: 64, CARL: 1}, 129)
    rates = {ANN: 1.0, BOB: 1.0, CARL: 8.0}

    assert shares.believed(rates) == rates
    assert seen(steps=1, ann=64, bob=64).believed(rates) == rates
    assert seen(steps=4, ann=1, bob=1).believed(rates) == rates


def test_what_was_seen_long_ago_counts_little():
    shares = seen(ann=0, bob=128)
    for _ in range(4):
        shares.on_step({ANN: 64, BOB: 64}, 128)

    assert shares.believed({ANN: 1.0, BOB: 1.0}) == {ANN: 1.0, BOB: 1.0}


def test_small_steps_add_up():
    shares = seen(steps=60, ann=1, bob=1)

    assert shares.believed({ANN: 1e5, BOB: 1.0})[ANN] == BELIEVED
