"""Invitations as text: what was printed is read again, and nothing else is."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run.access.harness import ANN, BOB, NOW_S, OWNER, RUN, bearer, personal, terms

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.run.access.grant import GrantTerms, check_subject, is_signed
from p2pswarm.run.access.invitation import PREFIX, as_text, from_text, invite_bearer, invite_peer
from p2pswarm.run.access.messages import GRANT_MAX_S, INVITATION_CHARS_MAX, USES_MAX

PLACES = (Address("203.0.113.7", 4000), Address("2001:db8::1", 4000))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

any_terms = st.builds(
    lambda roles, begin, lasts, uses: GrantTerms(roles, begin, begin + lasts, uses),
    st.integers(1, 7),
    st.integers(0, 2**33),
    st.integers(1, GRANT_MAX_S),
    st.integers(0, USES_MAX),
)


@given(
    any_terms, st.binary(min_size=16, max_size=16), st.lists(st.sampled_from(PLACES), max_size=4)
)
def test_a_text_is_read_as_what_was_written(about, seed, places):
    invitation = invite_bearer(OWNER, RUN, about, seed, tuple(places))

    text = as_text(invitation)

    assert from_text(text) == invitation
    assert len(text) <= INVITATION_CHARS_MAX
    assert is_signed(from_text(text).grant, OWNER.public_key)


@given(any_terms, st.binary(min_size=32, max_size=32))
def test_so_is_one_for_a_peer(about, peer):
    invitation = invite_peer(OWNER, RUN, about, PeerId(peer), PLACES)

    assert from_text(as_text(invitation)) == invitation


def test_an_invitation_is_short_enough_to_paste():
    assert len(as_text(invite_bearer(OWNER, RUN, terms(), b"s" * 16, PLACES[:1]))) < 210


def test_line_breaks_of_a_mail_do_not_matter():
    text = as_text(bearer())

    assert from_text(f"  {text[:40]}\n{text[40:90]}\r\n {text[90:]}\n") == bearer()


@given(st.data())
def test_one_wrong_character_is_noticed(data):
    text = as_text(bearer())
    place = data.draw(st.integers(len(PREFIX), len(text) - 2))  # the last one has unused bits
    other = data.draw(st.sampled_from(ALPHABET.replace(text[place], "")))

    with pytest.raises(Unusable, match="wrong character"):
        from_text(text[:place] + other + text[place + 1 :])


@given(st.integers(0, 100))
def test_a_part_of_a_text_is_noticed(missing):
    text = as_text(bearer())

    with pytest.raises(Unusable):
        from_text(text[: len(text) - 1 - missing])


def test_two_characters_that_changed_places_are_noticed():
    text, rng = as_text(bearer()), random.Random(1)
    for _ in range(50):
        place = rng.randrange(len(PREFIX), len(text) - 2)
        if text[place] != text[place + 1]:
            with pytest.raises(Unusable, match="wrong character"):
                from_text(text[:place] + text[place + 1] + text[place] + text[place + 2 :])


@given(st.text(max_size=300) | st.text(ALPHABET, max_size=300).map(lambda body: PREFIX + body))
def test_garbage_is_refused_in_one_line(text):
    with pytest.raises(Unusable) as refused:
        from_text(text)

    assert "\n" not in str(refused.value)


def test_what_is_too_long_is_not_even_decoded():
    with pytest.raises(Unusable, match="longer than"):
        from_text(PREFIX + "A" * (INVITATION_CHARS_MAX + 1))
    with pytest.raises(Unusable, match="whole line"):
        from_text("A" * 10_000_000)


def test_a_token_is_good_for_the_peer_that_made_it_alone():
    token = bearer().token(ANN)

    check_subject(token, ANN.raw)
    with pytest.raises(BadMessage, match="bound to another peer"):
        check_subject(token, BOB.raw)


def test_an_invitation_for_another_peer_names_the_remedy():
    with pytest.raises(Unusable, match="--identity FILE"):
        personal(ANN).token(BOB)


def test_a_grant_has_an_end():
    for lasts_s in (0, -1, GRANT_MAX_S + 1):
        with pytest.raises(ValueError, match="lasts from"):
            GrantTerms(terms().roles, NOW_S, NOW_S + lasts_s)
