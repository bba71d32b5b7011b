"""Weights for newcomers leave the upload of a node to its training."""

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.bulk.upload_share import (
    BACKGROUND,
    FLOOR_BYTES_PER_S,
    TOKENS_MAX,
    UploadShare,
)
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.rpc.base import Priority

CHUNK = 1 << 16
RATE_BYTES_PER_S = 100e6


def upload(share=0.1):
    return UploadShare(nullcontext(), share)


def beside(share, seconds, rate_bytes_per_s=RATE_BYTES_PER_S, chunk=CHUNK):
    """The share of background bytes on a way to the internet that something urgent fills."""
    rules, now_s, sent = upload(share), 0.0, {"urgent": 0, "background": 0}
    rules.begin("gradient")
    while now_s < seconds:
        kind = "background" if rules.may_send(chunk, now_s, print) else "urgent"
        if kind == "urgent":
            rules.on_urgent_chunk(chunk, now_s)
        sent[kind] += chunk
        now_s += chunk / rate_bytes_per_s
    return sent["background"] / sum(sent.values())


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_beside_training_a_newcomer_gets_its_share_and_no_more(share):
    floor = FLOOR_BYTES_PER_S / RATE_BYTES_PER_S

    assert beside(share, 10.0) == pytest.approx(share, abs=floor + 2 * CHUNK / RATE_BYTES_PER_S)


def test_a_share_of_nothing_leaves_the_floor():
    assert beside(0.0, 30.0) * RATE_BYTES_PER_S == pytest.approx(FLOOR_BYTES_PER_S, rel=0.1)


def test_a_share_of_all_is_no_limit():
    assert beside(1.0, 1.0) == 1.0


def test_without_training_it_gets_all():
    rules = upload()

    assert all(rules.may_send(1 << 20, 0.0, print) for _ in range(1000))


@given(st.lists(st.sampled_from("bueo"), max_size=200), st.floats(0.0, 0.9))
def test_no_more_than_the_share_goes_out_beside_urgent_bytes_in_any_order(moves, share):
    """b: background chunk; u: urgent chunk; e: an urgent transfer begins; o: one is over."""
    rules, urgent, beside_bytes, urgent_bytes, begun = upload(share), [], 0, 0, 0
    for move in moves:
        if move == "e":
            urgent.append(begun := begun + 1)
            rules.begin(begun)
        elif move == "o" and urgent:
            rules.end(urgent.pop())
        elif move == "u" and urgent:
            rules.on_urgent_chunk(CHUNK, 0.0)
            urgent_bytes += CHUNK
        elif move == "b" and rules.may_send(CHUNK, 0.0, print) and urgent:
            beside_bytes += CHUNK

    assert beside_bytes <= urgent_bytes * share / (1 - share) + CHUNK


@given(st.lists(st.sampled_from("bueo"), max_size=200))
def test_who_is_held_back_is_woken_at_the_end_of_the_last_urgent_transfer(moves):
    rules, urgent, held, begun = upload(), [], False, 0

    def wake():
        """Stand for a link."""

    for move in moves:
        if move == "e":
            urgent.append(begun := begun + 1)
            rules.begin(begun)
        elif move == "o" and urgent:
            held &= wake not in rules.end(urgent.pop())
        elif move == "u" and urgent:
            held &= wake not in rules.on_urgent_chunk(CHUNK, 0.0)
        elif move == "b":
            held = not rules.may_send(CHUNK, 0.0, wake)
        assert urgent or not held


def test_what_was_not_used_is_no_right_to_a_burst():
    rules = upload()
    rules.begin("gradient")
    rules.on_urgent_chunk(1 << 40, 1e6)

    chunks = 0
    while rules.may_send(CHUNK, 1e6, print):
        chunks += 1

    assert chunks * CHUNK == TOKENS_MAX


def test_a_clock_that_goes_back_takes_and_gives_nothing():
    rules = upload(0.0)
    rules.begin("gradient")
    while rules.may_send(CHUNK, 1.0, print):
        pass

    assert not rules.may_send(CHUNK, 0.5, print)
    assert not rules.may_send(CHUNK, 1.0, print)
    assert rules.may_send(CHUNK, 2.0, print)


def test_a_transfer_may_be_over_twice():
    rules = upload()
    rules.begin("gradient")
    assert not rules.may_send(CHUNK, 0.0, print)

    assert rules.end("gradient") == [print]
    assert rules.end("gradient") == []


def test_state_is_what_yields():
    assert Priority.STATE == BACKGROUND > Priority.TENSOR
    assert TransportConfig().background_share == 0.1
